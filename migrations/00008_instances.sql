-- +goose Up

-- Tokens with which workers join. Only the platform makes them.
create table weir.worker_tokens (
    id           text primary key check (id ~ '^[a-z0-9]{4,32}$'),
    name         text not null default '' check (length(name) <= 128),
    sha256       bytea not null check (length(sha256) = 32),
    uses         integer not null check (uses between 1 and 1000), -- workers that it lets in
    used         integer not null default 0 check (used between 0 and uses),
    created_at   timestamptz not null default now(),
    expires_at   timestamptz not null,
    last_used_at timestamptz
);
create index on weir.worker_tokens (created_at, id);

-- Workers that have joined. The row outlives their processes: it says which key
-- the name belongs to. What a process tells of itself is empty until it has
-- registered, and void once it has left.
create table weir.instances (
    name           text primary key check (name ~ '^[A-Za-z0-9._-]{1,63}$'),
    token_id       text not null references weir.worker_tokens (id),
    key_sha256     bytea not null check (length(key_sha256) = 32), -- of the worker's public key
    joined_at      timestamptz not null default now(),
    cert_not_after timestamptz not null,
    url            text not null default '' check (length(url) <= 300),
    kv             text not null default '' check (length(kv) <= 300), -- host:port for hand-offs
    role           text not null default '' check (role in ('', 'mixed', 'prefill', 'decode')),
    model          text not null default '' check (length(model) <= 128),
    fingerprint    text not null default '' check (length(fingerprint) <= 512),
    epoch          text not null default '' check (length(epoch) <= 128),
    registered_at  timestamptz,
    seen_at        timestamptz,
    drained_at     timestamptz
);
create index on weir.instances (token_id);

-- +goose Down
drop table weir.instances;
drop table weir.worker_tokens;
