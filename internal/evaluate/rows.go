package evaluate

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"
)

// WriteRows writes one row a prompt, as CSV that `weir cascade eval` reads.
func (r *Report) WriteRows(w io.Writer) error {
	c := csv.NewWriter(w)
	if err := c.Write([]string{"topic", "edge_ok", "cloud_ok", "confidence", "edge_ms", "cloud_ms"}); err != nil {
		return err
	}
	ms := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 2, 64) }
	for i, row := range r.rows {
		edge, cloud, confidence := row[edgeOnly], row[cloudOnly], ""
		if edge.confidence >= 0 {
			confidence = strconv.FormatFloat(edge.confidence, 'g', -1, 64)
		}
		err := c.Write([]string{r.lines[i].Task, strconv.Itoa(bit(edge.correct)), strconv.Itoa(bit(cloud.correct)), confidence, ms(edge.total), ms(cloud.total)})
		if err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}
