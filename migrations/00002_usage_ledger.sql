-- +goose Up

-- One row per attempt. A row's day comes from the time inside its UUIDv7
-- attempt_id, so that a replay meets its first copy in the same partition
-- whatever else it claims. Tenant and device are part of the key: nobody can
-- suppress another's row by using its attempt_id first.
create table weir.usage_ledger (
    day              date not null,
    attempt_id       uuid not null,
    tenant_id        uuid not null,
    device_id        uuid not null, -- all zero: straight to the cloud
    operation_id     uuid not null,
    key_id           text not null, -- '': the device's own use
    tier             text not null,
    model            text not null,
    class            text not null,
    outcome          text not null,
    usage_source     text not null,
    input_tokens     integer not null,
    cached_tokens    integer not null,
    output_tokens    integer not null,
    reasoning_tokens integer not null,
    price_version    bigint not null,
    cost_nanousd     bigint not null,
    started_at       timestamptz not null,
    ttft_us          bigint not null,
    total_us         bigint not null,
    error_code       text not null,
    reason           text not null,
    node             text not null,
    node_epoch       text not null,
    recorded_at      timestamptz not null default now(),
    primary key (attempt_id, tenant_id, device_id, day)
) partition by range (day);
create index usage_by_tenant on weir.usage_ledger (tenant_id, started_at desc, attempt_id);

-- ensure_usage_day makes a day's partition. It is attached, not created in
-- place, because that locks out neither readers nor writers of the other days.
-- +goose StatementBegin
create function weir.ensure_usage_day(d date) returns void language plpgsql as $$
declare
    part text := 'usage_' || to_char(d, 'YYYYMMDD');
begin
    if to_regclass('weir.' || part) is not null then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtext('weir.ensure_usage_day'));
    -- A query, not to_regclass, whose cached answer is from before the wait.
    if exists (select from pg_class where relname = part and relnamespace = 'weir'::regnamespace) then
        return;
    end if;
    execute format('create table weir.%I (like weir.usage_ledger including all, check (day >= %L and day < %L))', part, d, d + 1);
    execute format('alter table weir.usage_ledger attach partition weir.%I for values from (%L) to (%L)', part, d, d + 1);
end $$;
-- +goose StatementEnd

-- +goose Down
drop table weir.usage_ledger;
drop function weir.ensure_usage_day(date);
