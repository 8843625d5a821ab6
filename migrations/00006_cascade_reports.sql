-- +goose Up

-- What a device has learned of its model, as sums that hold no prompt and no
-- answer: the latest report of each device.
create table weir.cascade_reports (
    device_id   uuid primary key references weir.devices (id),
    tenant_id   uuid not null references weir.tenants (id),
    fingerprint text not null check (length(fingerprint) <= 128), -- of the edge model
    report      jsonb not null,
    updated_at  timestamptz not null default now()
);
create index on weir.cascade_reports (tenant_id, fingerprint, updated_at desc);
alter table weir.cascade_reports enable row level security;
create policy own on weir.cascade_reports using (weir.own(tenant_id));
grant select on weir.cascade_reports to weir_tenant;

-- +goose Down
drop table weir.cascade_reports;
