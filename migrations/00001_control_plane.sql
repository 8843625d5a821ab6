-- +goose Up

-- The schema weir itself is made by Go before goose looks for its own table.

create table weir.tenants (
    id         uuid primary key,
    name       text not null unique check (length(name) between 1 and 128),
    state      text not null default 'active' check (state in ('active', 'suspended')),
    weight     double precision not null default 1 check (weight > 0 and weight <= 1000),
    strict     boolean not null default false,
    created_at timestamptz not null default now()
);

-- Secrets of 256 random bits: a plain SHA-256 is what is kept of them.
create table weir.admin_tokens (
    id           text primary key check (id ~ '^[a-z0-9]{4,32}$'),
    sha256       bytea not null check (length(sha256) = 32),
    role         text not null check (role in ('platform_admin', 'tenant_admin', 'viewer')),
    tenant_id    uuid references weir.tenants (id),
    name         text not null default '' check (length(name) <= 128),
    state        text not null default 'active' check (state in ('active', 'revoked')),
    created_at   timestamptz not null default now(),
    expires_at   timestamptz,
    last_used_at timestamptz,
    check ((role = 'platform_admin') <= (tenant_id is null)),
    check ((role = 'tenant_admin') <= (tenant_id is not null))
);

create table weir.api_keys (
    id             text primary key check (id ~ '^[a-z0-9]{4,32}$'),
    tenant_id      uuid not null references weir.tenants (id),
    name           text not null default '' check (length(name) <= 128),
    sha256         bytea not null check (length(sha256) = 32),
    -- The secret before the last rotation, accepted until its grace ends.
    prev_sha256    bytea check (length(prev_sha256) = 32),
    prev_not_after timestamptz,
    scopes         text[] not null default '{}',
    models         text[] not null default '{}', -- none: all
    classes        text[] not null default '{}', -- none: all
    state          text not null default 'active' check (state in ('active', 'revoked')),
    created_at     timestamptz not null default now(),
    expires_at     timestamptz,
    rotated_at     timestamptz,
    last_used_at   timestamptz,
    check ((prev_sha256 is null) = (prev_not_after is null))
);
create index on weir.api_keys (tenant_id, created_at desc, id);

create table weir.devices (
    id             uuid primary key,
    tenant_id      uuid not null references weir.tenants (id),
    name           text not null default '' check (length(name) <= 128),
    state          text not null default 'active' check (state in ('active', 'revoked')),
    key_sha256     bytea not null check (length(key_sha256) = 32), -- of its public key
    joined_at      timestamptz not null default now(),
    cert_not_after timestamptz not null,
    last_seen_at   timestamptz
);
create index on weir.devices (tenant_id, joined_at desc, id);

create table weir.join_tokens (
    id         text primary key check (id ~ '^[a-z0-9]{4,32}$'),
    tenant_id  uuid not null references weir.tenants (id),
    name       text not null default '' check (length(name) <= 128), -- of the device to come
    sha256     bytea not null check (length(sha256) = 32),
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    used_at    timestamptz,
    device_id  uuid references weir.devices (id),
    check ((used_at is null) = (device_id is null))
);
create index on weir.join_tokens (tenant_id, created_at desc, id);

create table weir.slo_classes (
    name                   text primary key check (name ~ '^[a-z0-9._-]{1,128}$'),
    ttft_ms                bigint not null default 0 check (ttft_ms >= 0),
    tpot_ms                bigint not null default 0 check (tpot_ms >= 0),
    e2e_ms                 bigint not null default 0 check (e2e_ms >= 0),
    band                   integer not null default 1 check (band >= 0),
    weight                 double precision not null default 1 check (weight > 0),
    sheddable              boolean not null default false,
    max_queue_ms           bigint not null default 0 check (max_queue_ms >= 0),
    escalations_per_minute bigint not null default 0 check (escalations_per_minute >= 0),
    default_deadline_ms    bigint not null default 0 check (default_deadline_ms >= 0),
    is_default             boolean not null default false
);
create unique index on weir.slo_classes (is_default) where is_default;

-- Micro-dollars per million tokens. Rows are added, never changed: the ledger
-- names the version that it charged.
create table weir.prices (
    version        bigint generated always as identity primary key,
    tier           text not null check (tier in ('edge', 'cloud')),
    model          text not null check (length(model) between 1 and 128),
    effective_from timestamptz not null,
    input          bigint not null check (input >= 0),
    cached_input   bigint not null check (cached_input >= 0),
    output         bigint not null check (output >= 0),
    unique (tier, model, effective_from)
);

create table weir.limits (
    id          text primary key check (length(id) between 1 and 64),
    tenant_id   uuid not null references weir.tenants (id),
    key_id      text references weir.api_keys (id),
    model       text not null default '',
    tier        text not null default '' check (tier in ('', 'edge', 'cloud')),
    kind        text not null check (kind in ('requests', 'input_tokens', 'output_tokens', 'total_tokens', 'cost_nanousd', 'escalations', 'concurrent')),
    window_     text not null check (window_ in ('minute', 'day', 'month', 'at_once')),
    limit_      bigint not null check (limit_ >= 0),
    burst       bigint not null default 0 check (burst >= 0),
    shadow      boolean not null default false
);
create index on weir.limits (tenant_id);

create table weir.policies (
    tenant_id uuid not null references weir.tenants (id),
    class     text not null default '',
    mode      text not null default '',
    threshold double precision check (threshold between 0 and 1),
    spec      jsonb,
    primary key (tenant_id, class)
);

-- A request with an Idempotency-Key claims it here before any model runs.
create table weir.idempotency_claims (
    tenant_id   uuid not null,
    key_id      text not null,
    key         text not null check (length(key) between 1 and 128),
    body_sha256 bytea not null check (length(body_sha256) = 32),
    node        text not null,
    claimed_at  timestamptz not null default now(),
    expires_at  timestamptz not null,
    primary key (tenant_id, key_id, key)
);
create index on weir.idempotency_claims (expires_at);

-- What gateways poll. NOTIFY is a hint only: it is lost while nobody listens.
create table weir.config_version (
    one     boolean primary key default true check (one),
    version bigint not null
);
insert into weir.config_version (version) values (1);

-- +goose StatementBegin
create function weir.bump_config() returns trigger language plpgsql as $$
declare v bigint;
begin
    update weir.config_version set version = version + 1 returning version into v;
    perform pg_notify('weir_config', v::text);
    return null;
end $$;
-- +goose StatementEnd

create trigger bump_config after insert or update or delete on weir.tenants
    for each statement execute function weir.bump_config();
-- last_used_at is no configuration.
create trigger bump_config after insert or delete or
    update of sha256, prev_sha256, prev_not_after, scopes, models, classes, state, expires_at on weir.api_keys
    for each statement execute function weir.bump_config();
create trigger bump_config after insert or update or delete on weir.slo_classes
    for each statement execute function weir.bump_config();
create trigger bump_config after insert or update or delete on weir.prices
    for each statement execute function weir.bump_config();
create trigger bump_config after insert or update or delete on weir.limits
    for each statement execute function weir.bump_config();
create trigger bump_config after insert or update or delete on weir.policies
    for each statement execute function weir.bump_config();

insert into weir.slo_classes (name, ttft_ms, tpot_ms, band, weight, sheddable, max_queue_ms, is_default) values
    ('interactive', 500, 50, 0, 1, false, 5000, false),
    ('standard', 2000, 100, 1, 1, false, 15000, true),
    ('batch', 0, 0, 2, 1, true, 60000, false);

insert into weir.prices (tier, model, effective_from, input, cached_input, output) values
    ('edge', '*', '2000-01-01Z', 0, 0, 0),
    ('cloud', 'hub-cloud', '2000-01-01Z', 100000, 25000, 400000);

-- +goose Down
drop schema weir cascade;
