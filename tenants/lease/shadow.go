package lease

import (
	"context"
	"fmt"
)

// CountShadow adds to what limits in shadow would have refused, by limit. Limits
// that are gone are passed over.
func (s *Store) CountShadow(ctx context.Context, refused map[string]int64) error {
	ids, counts := make([]string, 0, len(refused)), make([]int64, 0, len(refused))
	for id, n := range refused {
		ids, counts = append(ids, id), append(counts, n)
	}
	// In order, so that gateways do not wait for one another in a circle.
	_, err := s.pool.Exec(ctx, `insert into weir.shadow_refusals as s (limit_id, tenant_id, refused)
		select l.id, l.tenant_id, n.refused from unnest($1::text[], $2::bigint[]) n(id, refused) join weir.limits l on l.id = n.id order by l.id
		on conflict (limit_id) do update set refused = s.refused + excluded.refused`, ids, counts)
	if err != nil {
		return fmt.Errorf("count shadow refusals: %w", err)
	}
	return nil
}
