CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
--
CREATE TABLE landing (
    url TEXT NOT NULL,
    applied_entry BIGINT NOT NULL, identity TEXT,
    CONSTRAINT pk_landing PRIMARY KEY (url)
)
--
CREATE TABLE lease (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    gateway TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    run TEXT DEFAULT '' NOT NULL, session TEXT DEFAULT '' NOT NULL, released BOOLEAN DEFAULT 0 NOT NULL, taken_epoch BIGINT DEFAULT '0' NOT NULL, logged_epoch BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_lease PRIMARY KEY (tenant, source)
)
--
CREATE TABLE tenant (
    id INTEGER NOT NULL,
    name TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    CONSTRAINT pk_tenant PRIMARY KEY (id),
    CONSTRAINT uq_tenant_name UNIQUE (name)
)
--
CREATE TABLE agent (
    id INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    session TEXT NOT NULL,
    version TEXT NOT NULL,
    hostname TEXT NOT NULL,
    connected BOOLEAN NOT NULL,
    connected_at_us BIGINT NOT NULL,
    seen_at_us BIGINT NOT NULL,
    resident_memory_bytes BIGINT,
    cpu_us BIGINT, key_sha256 TEXT, enrolled_at_us BIGINT, revoked_at_us BIGINT, problem JSON, reported TEXT DEFAULT '' NOT NULL, certificate_expires_at_us BIGINT,
    CONSTRAINT pk_agent PRIMARY KEY (id),
    CONSTRAINT fk_agent_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT uq_agent_tenant_id UNIQUE (tenant_id, name)
)
--
CREATE TABLE source (
    id INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    agent_id INTEGER,
    name TEXT NOT NULL,
    flavor TEXT NOT NULL,
    server_version TEXT NOT NULL,
    server_uuid TEXT NOT NULL,
    address TEXT NOT NULL,
    policy_sha256 TEXT NOT NULL,
    generation BIGINT NOT NULL,
    problem JSON,
    cartography_at_us BIGINT, dump_generation BIGINT DEFAULT '0' NOT NULL, other_server JSON, accepted_server TEXT DEFAULT '' NOT NULL, warnings JSON DEFAULT '[]' NOT NULL, cartography_digest TEXT DEFAULT '' NOT NULL, ended_table_id BIGINT DEFAULT '0' NOT NULL, told_generation BIGINT,
    CONSTRAINT pk_source PRIMARY KEY (id),
    CONSTRAINT fk_source_agent_id FOREIGN KEY(agent_id) REFERENCES agent (id),
    CONSTRAINT fk_source_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT uq_source_tenant_id UNIQUE (tenant_id, name)
)
--
CREATE INDEX ix_source_agent_id ON source (agent_id)
--
CREATE TABLE committed_position (
    source_id INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    cut BIGINT NOT NULL,
    last_gsn BIGINT NOT NULL,
    last_transaction_id BIGINT NOT NULL,
    position JSON NOT NULL,
    ahead JSON NOT NULL,
    rows BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    transactions BIGINT NOT NULL,
    last_commit_timestamp_us BIGINT,
    committed_at_us BIGINT NOT NULL, landing TEXT DEFAULT '' NOT NULL, entry BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_committed_position PRIMARY KEY (source_id),
    CONSTRAINT fk_committed_position_source_id FOREIGN KEY(source_id) REFERENCES source (id)
)
--
CREATE TABLE source_health (
    source_id INTEGER NOT NULL,
    at_us BIGINT NOT NULL,
    read_position TEXT NOT NULL,
    source_position TEXT NOT NULL,
    lag_us BIGINT,
    rows BIGINT NOT NULL,
    transactions BIGINT NOT NULL,
    read_bytes BIGINT NOT NULL,
    sent_bytes BIGINT NOT NULL,
    credit_wait_us BIGINT NOT NULL,
    rows_per_second DOUBLE,
    read_bytes_per_second DOUBLE,
    problem JSON, decode_cpu_us BIGINT, restarts BIGINT, credit_bytes BIGINT, log_retention_seconds BIGINT, log_room_bytes BIGINT, heartbeat_ms BIGINT DEFAULT '1000' NOT NULL, log_is_unlimited BOOLEAN,
    CONSTRAINT pk_source_health PRIMARY KEY (source_id),
    CONSTRAINT fk_source_health_source_id FOREIGN KEY(source_id) REFERENCES source (id)
)
--
CREATE TABLE source_table (
    id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    engine TEXT NOT NULL,
    table_collation TEXT NOT NULL,
    estimated_rows BIGINT,
    size_bytes BIGINT,
    columns JSON NOT NULL,
    keys JSON NOT NULL,
    denied BOOLEAN NOT NULL,
    gone BOOLEAN NOT NULL,
    digest TEXT NOT NULL, definitions BIGINT DEFAULT '0' NOT NULL, foreign_keys JSON DEFAULT '[]' NOT NULL, more_foreign_keys BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_source_table PRIMARY KEY (id),
    CONSTRAINT fk_source_table_source_id FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT uq_source_table_source_id UNIQUE (source_id, "database", name)
)
--
CREATE TABLE sync (
    table_id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    desired TEXT NOT NULL,
    start TEXT,
    start_text TEXT NOT NULL,
    changed_generation BIGINT NOT NULL,
    failed BOOLEAN NOT NULL,
    state TEXT NOT NULL,
    problem JSON,
    earlier_rows_missing TEXT NOT NULL,
    ignored_columns JSON NOT NULL,
    rows BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    last_commit_timestamp_us BIGINT,
    landed_at_us BIGINT, unlogged JSON, lake_rereads_per_hour BIGINT DEFAULT '0' NOT NULL, position_id BIGINT, last_cut BIGINT, foreign_keys JSON, altered JSON, verification_ordered_at_us BIGINT DEFAULT '0' NOT NULL, withheld JSON, stopped_by TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_sync PRIMARY KEY (table_id),
    CONSTRAINT fk_sync_source_id FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT fk_sync_table_id FOREIGN KEY(table_id) REFERENCES source_table (id)
)
--
CREATE INDEX ix_sync_source_id ON sync (source_id, state)
--
CREATE TABLE table_event (
    table_id INTEGER NOT NULL,
    gsn BIGINT NOT NULL,
    kind TEXT NOT NULL,
    commit_timestamp_us BIGINT NOT NULL,
    position TEXT NOT NULL,
    statement TEXT NOT NULL,
    removes_rows BOOLEAN NOT NULL,
    new_name JSON NOT NULL, dump TEXT DEFAULT '' NOT NULL, unlogged_changes TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_table_event PRIMARY KEY (table_id, gsn),
    CONSTRAINT fk_table_event_table_id FOREIGN KEY(table_id) REFERENCES source_table (id)
)
--
CREATE TABLE dump (
    id INTEGER NOT NULL,
    uuid TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    table_id INTEGER NOT NULL,
    state TEXT NOT NULL,
    sync_generation BIGINT NOT NULL,
    created_at_us BIGINT NOT NULL,
    ended_at_us BIGINT,
    problem JSON,
    priority BIGINT NOT NULL,
    paused BOOLEAN NOT NULL,
    forced BOOLEAN NOT NULL,
    workers BIGINT NOT NULL,
    rows_per_second BIGINT NOT NULL,
    bytes_per_second BIGINT NOT NULL,
    planned_at_us BIGINT,
    "key" JSON NOT NULL,
    estimated_rows BIGINT,
    estimated_bytes BIGINT,
    runway_seconds BIGINT,
    needed_seconds BIGINT,
    warning TEXT NOT NULL,
    started_gsn BIGINT NOT NULL,
    next_chunk BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    chunks BIGINT NOT NULL, least_key DOUBLE, greatest_key DOUBLE, cause TEXT DEFAULT '' NOT NULL, delay_seconds BIGINT DEFAULT '0' NOT NULL, focus JSON, compares BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_dump PRIMARY KEY (id),
    CONSTRAINT fk_dump_source_id FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT fk_dump_table_id FOREIGN KEY(table_id) REFERENCES source_table (id),
    CONSTRAINT uq_dump_source_id UNIQUE (source_id, uuid)
)
--
CREATE INDEX ix_dump_source_id ON dump (source_id, state)
--
CREATE INDEX ix_dump_table_id ON dump (table_id)
--
CREATE TABLE dump_range (
    dump_id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    lower TEXT NOT NULL,
    upper TEXT NOT NULL,
    reached TEXT NOT NULL,
    done BOOLEAN NOT NULL,
    rows BIGINT NOT NULL, bytes BIGINT DEFAULT '0' NOT NULL, chunks BIGINT DEFAULT '0' NOT NULL, former JSON,
    CONSTRAINT pk_dump_range PRIMARY KEY (dump_id, number),
    CONSTRAINT fk_dump_range_dump_id FOREIGN KEY(dump_id) REFERENCES dump (id)
)
--
CREATE TABLE dump_status (
    dump_id INTEGER NOT NULL,
    at_us BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    rows_per_second BIGINT NOT NULL,
    bytes_per_second BIGINT NOT NULL,
    uncommitted_rows BIGINT NOT NULL, held TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_dump_status PRIMARY KEY (dump_id),
    CONSTRAINT fk_dump_status_dump_id FOREIGN KEY(dump_id) REFERENCES dump (id)
)
--
CREATE TABLE lake (
    id INTEGER NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    landing TEXT NOT NULL,
    run TEXT NOT NULL,
    number BIGINT NOT NULL,
    complete BOOLEAN NOT NULL,
    entry BIGINT NOT NULL,
    waiting_since_us BIGINT NOT NULL,
    problem JSON,
    received_at_us BIGINT NOT NULL, durable_entry BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_lake PRIMARY KEY (id),
    CONSTRAINT uq_lake_name UNIQUE (name)
)
--
CREATE TABLE lake_source (
    lake_id INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    entry BIGINT NOT NULL,
    cut BIGINT NOT NULL,
    committed_at_us BIGINT NOT NULL,
    last_commit_timestamp_us BIGINT NOT NULL,
    CONSTRAINT pk_lake_source PRIMARY KEY (lake_id, tenant, source),
    CONSTRAINT fk_lake_source_lake_id FOREIGN KEY(lake_id) REFERENCES lake (id)
)
--
CREATE INDEX ix_lake_source_tenant ON lake_source (tenant, source)
--
CREATE TABLE lake_stop (
    lake_id INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    entry BIGINT NOT NULL,
    cut BIGINT NOT NULL,
    code TEXT NOT NULL,
    message TEXT NOT NULL,
    terminal BOOLEAN NOT NULL,
    at_us BIGINT NOT NULL,
    last_commit_timestamp_us BIGINT NOT NULL,
    retry BOOLEAN NOT NULL,
    stale BOOLEAN NOT NULL, reread BOOLEAN DEFAULT 0 NOT NULL, gsn BIGINT DEFAULT '0' NOT NULL, asked BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_lake_stop PRIMARY KEY (lake_id, tenant, source, "database", name),
    CONSTRAINT fk_lake_stop_lake_id FOREIGN KEY(lake_id) REFERENCES lake (id)
)
--
CREATE INDEX ix_lake_stop_tenant ON lake_stop (tenant, source, "database", name)
--
CREATE TABLE quarantine (
    source_id INTEGER NOT NULL,
    landing TEXT NOT NULL,
    entry BIGINT NOT NULL,
    cut BIGINT NOT NULL,
    last_entry BIGINT NOT NULL,
    last_cut BIGINT NOT NULL,
    problem JSON NOT NULL,
    "after" JSON NOT NULL,
    tables JSON,
    retry BOOLEAN NOT NULL,
    CONSTRAINT pk_quarantine PRIMARY KEY (source_id),
    CONSTRAINT fk_quarantine_source_id FOREIGN KEY(source_id) REFERENCES source (id)
)
--
CREATE TABLE source_position (
    id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    digest TEXT NOT NULL,
    position JSON NOT NULL,
    CONSTRAINT pk_source_position PRIMARY KEY (id),
    CONSTRAINT fk_source_position_source_id FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT uq_source_position_source_id UNIQUE (source_id, digest)
)
--
CREATE INDEX ix_sync_position_id ON sync (position_id)
--
CREATE TABLE enrolment_token (
    id INTEGER NOT NULL,
    token TEXT NOT NULL,
    secret_sha256 TEXT NOT NULL,
    tenant_id INTEGER NOT NULL,
    agent TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    expires_at_us BIGINT NOT NULL,
    used_at_us BIGINT,
    used_by TEXT NOT NULL,
    revoked_at_us BIGINT,
    CONSTRAINT pk_enrolment_token PRIMARY KEY (id),
    CONSTRAINT fk_enrolment_token_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT uq_enrolment_token_token UNIQUE (token)
)
--
CREATE INDEX ix_enrolment_token_tenant_id ON enrolment_token (tenant_id)
--
CREATE TABLE certificate_authority (
    id INTEGER NOT NULL,
    certificate_pem TEXT NOT NULL,
    at_us BIGINT NOT NULL,
    CONSTRAINT pk_certificate_authority PRIMARY KEY (id)
)
--
CREATE TABLE audit (
    id INTEGER NOT NULL,
    at_us BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    refused TEXT NOT NULL,
    found TEXT NOT NULL, number BIGINT DEFAULT '0' NOT NULL, failed BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (id)
)
--
CREATE TABLE gateway (
    name TEXT NOT NULL,
    run TEXT NOT NULL,
    expires_at_us BIGINT NOT NULL, lease_us BIGINT DEFAULT '15000000' NOT NULL,
    CONSTRAINT pk_gateway PRIMARY KEY (name)
)
--
CREATE TABLE api_token (
    id INTEGER NOT NULL,
    token TEXT NOT NULL,
    secret_argon2 TEXT NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    tenant_id INTEGER,
    created_by TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    expires_at_us BIGINT,
    revoked_at_us BIGINT,
    CONSTRAINT pk_api_token PRIMARY KEY (id),
    CONSTRAINT fk_api_token_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT uq_api_token_token UNIQUE (token)
)
--
CREATE INDEX ix_api_token_tenant_id ON api_token (tenant_id)
--
CREATE TABLE web_session (
    id INTEGER NOT NULL,
    secret_sha256 TEXT NOT NULL,
    link BOOLEAN NOT NULL,
    actor TEXT NOT NULL,
    grants JSON NOT NULL,
    token_id INTEGER,
    created_at_us BIGINT NOT NULL,
    expires_at_us BIGINT NOT NULL,
    CONSTRAINT pk_web_session PRIMARY KEY (id),
    CONSTRAINT fk_web_session_token_id FOREIGN KEY(token_id) REFERENCES api_token (id) ON DELETE CASCADE,
    CONSTRAINT uq_web_session_secret_sha256 UNIQUE (secret_sha256)
)
--
CREATE INDEX ix_web_session_actor ON web_session (actor)
--
CREATE INDEX ix_web_session_token_id ON web_session (token_id)
--
CREATE TABLE kept_answer (
    tenant TEXT NOT NULL,
    caller TEXT NOT NULL,
    "key" TEXT NOT NULL,
    at_us BIGINT NOT NULL,
    request_sha256 TEXT NOT NULL,
    answer TEXT,
    CONSTRAINT pk_kept_answer PRIMARY KEY (tenant, caller, "key")
)
--
CREATE INDEX ix_kept_answer_tenant ON kept_answer (tenant, at_us)
--
CREATE TABLE sync_rule (
    id INTEGER NOT NULL,
    uuid TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    start TEXT NOT NULL,
    options JSON NOT NULL,
    created_at_us BIGINT NOT NULL,
    CONSTRAINT pk_sync_rule PRIMARY KEY (id),
    CONSTRAINT fk_sync_rule_source_id FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT uq_sync_rule_source_id UNIQUE (source_id, "database", name)
)
--
CREATE TABLE operation (
    id INTEGER NOT NULL,
    uuid TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at_us BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    tables BIGINT NOT NULL,
    CONSTRAINT pk_operation PRIMARY KEY (id),
    CONSTRAINT fk_operation_source_id FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT uq_operation_source_id UNIQUE (source_id, uuid)
)
--
CREATE TABLE operation_table (
    operation_id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    table_id INTEGER,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    changed BOOLEAN NOT NULL,
    refused TEXT NOT NULL,
    dump TEXT NOT NULL,
    CONSTRAINT pk_operation_table PRIMARY KEY (operation_id, number),
    CONSTRAINT fk_operation_table_operation_id FOREIGN KEY(operation_id) REFERENCES operation (id)
)
--
CREATE TABLE source_configuration (
    source_id INTEGER NOT NULL,
    generation BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    document TEXT NOT NULL,
    changed_at_us BIGINT NOT NULL,
    effective_generation BIGINT NOT NULL,
    effective_sha256 TEXT NOT NULL,
    problem JSON,
    told_at_us BIGINT,
    CONSTRAINT pk_source_configuration PRIMARY KEY (source_id),
    CONSTRAINT fk_source_configuration_source_id FOREIGN KEY(source_id) REFERENCES source (id)
)
--
CREATE TABLE wanted_table (
    source_id INTEGER NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    start TEXT NOT NULL,
    options JSON NOT NULL,
    problem JSON,
    CONSTRAINT pk_wanted_table PRIMARY KEY (source_id, "database", name),
    CONSTRAINT fk_wanted_table_source_id FOREIGN KEY(source_id) REFERENCES source (id)
)
--
CREATE TABLE agent_presence (
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    gateway TEXT NOT NULL,
    run TEXT NOT NULL,
    session TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    released BOOLEAN NOT NULL,
    CONSTRAINT pk_agent_presence PRIMARY KEY (tenant, agent)
)
--
CREATE TABLE table_definition (
    id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    table_id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    teller TEXT NOT NULL,
    at_us BIGINT,
    gsn BIGINT,
    position TEXT NOT NULL,
    digest TEXT NOT NULL,
    columns JSON NOT NULL,
    keys JSON NOT NULL,
    bytes BIGINT NOT NULL,
    CONSTRAINT pk_table_definition PRIMARY KEY (id),
    CONSTRAINT uq_table_definition_table_id UNIQUE (table_id, number),
    CONSTRAINT fk_table_definition_source_id FOREIGN KEY(source_id) REFERENCES source (id),
    CONSTRAINT fk_table_definition_table_id FOREIGN KEY(table_id) REFERENCES source_table (id)
)
--
CREATE INDEX ix_table_definition_source_id ON table_definition (source_id, id)
--
CREATE TABLE ledger_entry (
    table_id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    at_us BIGINT NOT NULL,
    kind TEXT NOT NULL,
    gsn BIGINT NOT NULL,
    from_position TEXT NOT NULL,
    to_position TEXT NOT NULL,
    dump TEXT NOT NULL,
    detail TEXT NOT NULL,
    actor TEXT NOT NULL,
    hash TEXT NOT NULL,
    CONSTRAINT pk_ledger_entry PRIMARY KEY (table_id, number),
    CONSTRAINT fk_ledger_entry_table_id FOREIGN KEY(table_id) REFERENCES source_table (id)
)
--
CREATE TABLE ledger_head (
    table_id INTEGER NOT NULL,
    entries BIGINT NOT NULL,
    hash TEXT NOT NULL,
    CONSTRAINT pk_ledger_head PRIMARY KEY (table_id),
    CONSTRAINT fk_ledger_head_table_id FOREIGN KEY(table_id) REFERENCES source_table (id)
)
--
CREATE TABLE verdict (
    id INTEGER NOT NULL,
    lake_id INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    verification TEXT NOT NULL,
    verdict TEXT NOT NULL,
    reason TEXT NOT NULL,
    position TEXT NOT NULL,
    cut BIGINT NOT NULL,
    source_rows BIGINT NOT NULL,
    lake_rows BIGINT NOT NULL,
    leaves_equal BIGINT NOT NULL,
    leaves_differ BIGINT NOT NULL,
    leaves_unknown BIGINT NOT NULL,
    leaves JSON NOT NULL,
    proven_at_us BIGINT NOT NULL,
    at_us BIGINT NOT NULL,
    received_at_us BIGINT NOT NULL, unproven JSON, since_gsn BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_verdict PRIMARY KEY (id),
    CONSTRAINT fk_verdict_lake_id FOREIGN KEY(lake_id) REFERENCES lake (id),
    CONSTRAINT uq_verdict_lake_id UNIQUE (lake_id, tenant, source, "database", name, verification)
)
--
CREATE INDEX ix_verdict_tenant ON verdict (tenant, source, "database", name)
--
CREATE TABLE verification_schedule (
    source_id INTEGER NOT NULL,
    every_seconds BIGINT NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    window TEXT NOT NULL,
    rows_per_second BIGINT NOT NULL,
    changed_at_us BIGINT NOT NULL,
    next_at_us BIGINT NOT NULL,
    CONSTRAINT pk_verification_schedule PRIMARY KEY (source_id),
    CONSTRAINT fk_verification_schedule_source_id FOREIGN KEY(source_id) REFERENCES source (id)
)
--
CREATE TABLE table_proof (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    known_at_us BIGINT NOT NULL,
    proven_at_us BIGINT NOT NULL,
    newest_id BIGINT NOT NULL,
    proof_id BIGINT,
    CONSTRAINT pk_table_proof PRIMARY KEY (tenant, source, "database", name)
)
--
CREATE INDEX ix_sync_source_id_verification ON sync (source_id, verification_ordered_at_us)
--
CREATE TABLE lake_policy (
    lake_id INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    "database" TEXT NOT NULL,
    name TEXT NOT NULL,
    said TEXT NOT NULL,
    CONSTRAINT pk_lake_policy PRIMARY KEY (lake_id, tenant, source, "database", name),
    CONSTRAINT fk_lake_policy_lake_id FOREIGN KEY(lake_id) REFERENCES lake (id)
)
--
CREATE INDEX ix_lake_policy_tenant ON lake_policy (tenant, source, "database", name)
--
CREATE TABLE joined_view (
    id INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    version BIGINT NOT NULL,
    created_at_us BIGINT NOT NULL,
    changed_at_us BIGINT NOT NULL,
    name TEXT NOT NULL,
    sql TEXT NOT NULL,
    digest TEXT NOT NULL,
    tables JSON NOT NULL,
    views JSON NOT NULL,
    CONSTRAINT pk_joined_view PRIMARY KEY (id),
    CONSTRAINT fk_joined_view_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT uq_joined_view_tenant_id UNIQUE (tenant_id, name)
)
--
CREATE TABLE lake_joined_view (
    lake_id INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    code TEXT NOT NULL,
    message TEXT NOT NULL,
    cuts JSON NOT NULL,
    lake_version BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    changes BIGINT NOT NULL,
    applied_at_us BIGINT NOT NULL,
    CONSTRAINT pk_lake_joined_view PRIMARY KEY (lake_id, tenant, name),
    CONSTRAINT fk_lake_joined_view_lake_id FOREIGN KEY(lake_id) REFERENCES lake (id)
)
--
CREATE TABLE blocked_source (
    landing TEXT NOT NULL,
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    entry BIGINT NOT NULL,
    last_entry BIGINT NOT NULL,
    CONSTRAINT pk_blocked_source PRIMARY KEY (landing, tenant, source)
)
--
CREATE INDEX ix_audit_tenant_number ON audit (tenant, number)
--
CREATE TRIGGER menura_keep_audit BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END
--
CREATE TRIGGER menura_keep_audit_rows BEFORE DELETE ON audit WHEN NOT (CASE WHEN OLD.number > 0 THEN OLD.number <= (SELECT MAX(number) FROM audit WHERE tenant = OLD.tenant) - 1000000 ELSE OLD.number >= (SELECT MIN(number) FROM audit WHERE tenant = OLD.tenant) + 100000 END) BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END
--
CREATE TABLE agent_version (
    agent_id INTEGER NOT NULL,
    generation BIGINT NOT NULL,
    version TEXT NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    state TEXT NOT NULL,
    downloaded_bytes BIGINT NOT NULL,
    problem JSON,
    told_at_us BIGINT NOT NULL,
    ordered BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_agent_version PRIMARY KEY (agent_id),
    CONSTRAINT fk_agent_version_agent_id FOREIGN KEY(agent_id) REFERENCES agent (id)
)
--
CREATE TABLE agent_release (
    id INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    version TEXT NOT NULL,
    sums BLOB NOT NULL,
    signature BLOB NOT NULL,
    size_bytes BIGINT NOT NULL,
    complete BOOLEAN DEFAULT 0 NOT NULL,
    created_at_us BIGINT NOT NULL,
    changed_at_us BIGINT NOT NULL,
    CONSTRAINT pk_agent_release PRIMARY KEY (id),
    CONSTRAINT fk_agent_release_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT uq_agent_release_tenant_id UNIQUE (tenant_id, version)
)
--
CREATE TABLE agent_package (
    id INTEGER NOT NULL,
    release_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    format TEXT NOT NULL,
    machine TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    received_bytes BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_agent_package PRIMARY KEY (id),
    CONSTRAINT fk_agent_package_release_id FOREIGN KEY(release_id) REFERENCES agent_release (id),
    CONSTRAINT uq_agent_package_release_id UNIQUE (release_id, name)
)
--
CREATE INDEX ix_agent_package_sha256 ON agent_package (sha256)
--
CREATE TABLE agent_package_piece (
    package_id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    data BLOB NOT NULL,
    CONSTRAINT pk_agent_package_piece PRIMARY KEY (package_id, number),
    CONSTRAINT fk_agent_package_piece_package_id FOREIGN KEY(package_id) REFERENCES agent_package (id)
)
--
CREATE TABLE rollout (
    id INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    version TEXT NOT NULL,
    back_of BIGINT,
    state TEXT NOT NULL,
    problem JSON,
    groups JSON NOT NULL,
    group_number BIGINT DEFAULT '0' NOT NULL,
    wait_us BIGINT NOT NULL,
    at_once BIGINT NOT NULL,
    most_failures BIGINT NOT NULL,
    return_us BIGINT NOT NULL,
    roll_back BOOLEAN DEFAULT 0 NOT NULL,
    clock_us BIGINT DEFAULT '0' NOT NULL,
    looked_at_us BIGINT NOT NULL,
    whole_us BIGINT,
    created_by TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    ended_at_us BIGINT,
    CONSTRAINT pk_rollout PRIMARY KEY (id),
    CONSTRAINT fk_rollout_tenant_id FOREIGN KEY(tenant_id) REFERENCES tenant (id)
)
--
CREATE INDEX ix_rollout_tenant_id ON rollout (tenant_id, state)
--
CREATE INDEX ix_rollout_state ON rollout (state, looked_at_us)
--
CREATE TABLE rollout_agent (
    rollout_id INTEGER NOT NULL,
    agent_id INTEGER NOT NULL,
    group_number BIGINT NOT NULL,
    version TEXT NOT NULL,
    former_version TEXT DEFAULT '' NOT NULL,
    state TEXT NOT NULL,
    generation BIGINT DEFAULT '0' NOT NULL,
    since_us BIGINT DEFAULT '0' NOT NULL,
    problem JSON,
    skipped BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_rollout_agent PRIMARY KEY (rollout_id, agent_id),
    CONSTRAINT fk_rollout_agent_rollout_id FOREIGN KEY(rollout_id) REFERENCES rollout (id),
    CONSTRAINT fk_rollout_agent_agent_id FOREIGN KEY(agent_id) REFERENCES agent (id)
)
--
CREATE INDEX ix_rollout_agent_agent_id ON rollout_agent (agent_id, state)
--
CREATE INDEX ix_rollout_agent_rollout_id ON rollout_agent (rollout_id, state, group_number)
--
CREATE INDEX ix_audit_tenant_id ON audit (tenant, id)
--
INSERT INTO alembic_version VALUES ('0047')
