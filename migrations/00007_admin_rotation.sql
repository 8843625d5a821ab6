-- +goose Up

-- The secret before the last rotation, accepted until its grace ends.
alter table weir.admin_tokens
    add column prev_sha256 bytea check (length(prev_sha256) = 32),
    add column prev_not_after timestamptz,
    add column rotated_at timestamptz;

-- +goose Down
alter table weir.admin_tokens drop column prev_sha256, drop column prev_not_after, drop column rotated_at;
