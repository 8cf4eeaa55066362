"""Which test runs what a message of the product says is to be done.

A remedy is a command of `menura`, a statement for the server, or a setting, wherever a text of the product names one.
Comes in: the product's source. Each function that makes such a text stands in `RUN_BY` with a test that brings its
message about, takes the remedy from it and runs it, word for word. Two messages are not brought about: `_dump_command`
takes a log file above 4 GiB, its command is run after another message of its code; `check_engine` says that there is no
table only where it goes within the moment between two statements. A remedy that is run nowhere fails this test, and so
does an entry for a text or a test that is no more.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.servers import ROOT

PACKAGES = ("agent", "gateway", "controlplane_api", "spark_sink", "proto/menura")
#: they make commands
HELPERS = frozenset(
    {"quarantine_of", "sync_anew", "sync_stop", "sync_retry", "sync_resync", "dump_anew", "restored_or_anew"}
)
REMEDY = re.compile(
    r"\bmenura (?:sync|dump|sources|lakes|agents?|token|gateway|api|sink|up|tables|events|status)\b"
    r"|\bSET GLOBAL [a-z]|\bCALL mysql\.|\bGRANT [{A-Z]|\bALTER (?:TABLE|USER) |\bsources\.\{|\bgtid_mode=ON|\bmy\.cnf"
    rf"|(?:{'|'.join(HELPERS)})\(|\.(?:resync|retry)\}}"
)

AGENT = "agent/test_remedies.py"
TABLE = "agent/test_table_remedies.py"
E2E = "e2e/test_remedies.py"
SINK = "spark_sink/test_remedies.py"
CONTROL = "controlplane_api/test_remedies.py"
POISON = "spark_sink/test_worker_killed.py"
_CHECKS = f"{AGENT}::test_filter_when_it_does_not_fit_then_what_the_messages_name_is_what_to_change"
_GRANTS = (
    f"{AGENT}::test_grants_when_they_are_missing_then_the_statements_of_the_messages_give_them_before_and_while_it_runs"
)
_LOG = f"{AGENT}::test_log_when_it_is_off_or_not_of_rows_then_the_lines_and_statements_of_the_messages_mend_it"
_TLS = f"{AGENT}::test_tls_when_it_can_not_be_verified_then_the_setting_of_the_message_verifies_it"
_ADDRESS = f"{AGENT}::test_address_when_nobody_is_there_then_the_settings_of_the_message_are_those_to_correct"
_DROPPED = f"{AGENT}::test_table_when_the_filter_drops_it_then_the_setting_of_the_message_lets_it_through"
_RENAMED = (
    "agent/test_renamed_tables.py::"
    "test_a_dropped_table_when_it_has_another_name_then_stays_denied_until_the_filter_names_the_former"
)
_SERVER_ID = f"{AGENT}::test_server_id_when_the_server_has_it_then_the_setting_of_the_message_is_the_one_to_change"
_JSON = f"{AGENT}::test_json_when_it_is_logged_in_parts_then_either_statement_of_the_message_mends_it"
_FILTER = "controlplane_api/test_filter_command.py::test_filter_when_its_words_name_a_command_then_that_goes_on"
_LEAVES = (
    "agent/test_policy.py::test_policy_test_when_names_are_given_then_it_shows_the_line_that_decides_and_its_exit_code"
)
_LISTED = (
    "controlplane_api/test_first_words.py::"
    "test_messages_when_they_name_the_command_that_lists_tables_then_it_lists_them"
)
_REASONS = (
    "controlplane_api/test_table_reasons_shown.py::test_remedies_when_they_name_commands_then_these_bring_the_table_on"
)
_WHY = "controlplane_api/test_why.py::test_command_when_somebody_has_to_run_something_then_what_it_names_goes_on"
_DOCTOR = (
    "agent/test_doctor_servers.py::"
    "test_server_when_settings_tables_and_grants_are_wrong_then_each_is_found_and_its_fix_mends_it"
)
_PG_DOCTOR = (
    "agent/postgresql/test_doctor.py::"
    "test_server_when_settings_tables_and_grants_are_wrong_then_each_is_found_and_its_fix_mends_it"
)
_UNSAFE = (
    "agent/test_hostile_servers.py::"
    "test_mysql_login_when_the_account_has_another_plugin_then_the_statement_of_the_message_lets_it_in"
)
_PG_UNSAFE = (
    "agent/postgresql/test_sessions.py::"
    "test_login_when_the_server_asks_for_the_password_itself_then_what_its_error_says_lets_in"
)
_LOGIN = f"{AGENT}::test_login_when_it_is_refused_then_the_statement_of_the_message_lets_it_in"
_NO_GTIDS = (
    "agent/test_dump_servers.py::"
    "test_dump_when_mysql_has_no_gtids_then_asks_for_lock_tables_and_snapshots_give_its_positions"
)
_NO_GTIDS_AT_THE_REPLICA = (
    "agent/test_dump_servers.py::test_dump_when_the_replica_has_no_gtids_then_it_fails_and_says_why"
)
_DUMPS = f"{E2E}::test_dumps_when_they_fail_then_their_remedies_bring_all_rows"
_POLICY = f"{E2E}::test_table_when_stopped_by_its_policy_then_its_remedy_brings_its_rows"
_STATEMENT = f"{E2E}::test_table_when_a_statement_was_logged_then_its_remedy_brings_its_rows"
_PRECISE = f"{E2E}::test_tables_when_the_versions_of_one_count_transactions_then_its_remedy_brings_all_rows"
_IGNORED = f"{E2E}::test_table_when_an_ignored_column_gets_another_name_then_its_remedy_brings_its_rows"
_UNKNOWN = f"{E2E}::test_table_when_its_definition_can_not_be_known_then_its_remedy_brings_its_rows"
_PURGED = f"{E2E}::test_table_when_its_log_was_purged_and_its_policy_is_to_stop_then_its_remedy_brings_its_rows"
_UNNAMED_KEY = f"{E2E}::test_table_without_a_primary_key_when_its_rows_come_in_parts_then_its_remedy_brings_its_rows"
_NO_SNAPSHOTS = (
    "e2e/test_memory_source.py::"
    "test_dump_when_its_source_has_no_snapshots_then_the_commands_of_its_remedy_bring_the_rows"
)
_HOST_POLICY = (
    "e2e/test_memory_source.py::test_table_when_its_hosts_policy_comes_to_deny_it_then_its_remedy_brings_its_rows"
)
_SHORT = f"{E2E}::test_dump_when_the_log_is_kept_too_short_then_its_remedy_brings_its_rows"
_REFUSED = f"{E2E}::test_command_when_it_is_refused_then_what_it_says_instead_is_taken"
_LIMIT = f"{E2E}::test_table_when_it_needs_too_many_re_reads_then_its_remedy_brings_its_rows"
_LOST = f"{E2E}::test_desired_state_when_the_control_database_is_lost_then_its_remedy_goes_on_with_all_tables"
_REPLACED = (
    "e2e/test_log_gone.py::test_server_when_another_one_is_at_its_address_then_nothing_is_read_before_it_is_accepted"
)
_LAKE = (
    "e2e/test_status.py::"
    "test_table_when_the_lake_can_not_follow_it_then_everybody_says_so_and_retry_and_resync_bring_it_back"
)
_AWAY = "e2e/test_status.py::test_tables_when_the_agent_is_away_then_they_wait_and_when_it_is_back_they_stream"
_DAMAGED = f"{SINK}::test_table_when_a_landed_file_is_damaged_then_either_remedy_brings_its_rows"
_IN_PARTS = f"{SINK}::test_table_without_a_key_when_its_rows_come_in_parts_then_the_remedy_brings_its_rows"
_RANGE = f"{SINK}::test_table_without_a_key_when_a_range_of_it_comes_then_the_remedy_brings_its_rows"
_EARLIER = f"{SINK}::test_table_when_what_its_earlier_rows_hold_can_not_be_read_then_the_remedy_brings_its_rows"
_UNEXPECTED = (
    "spark_sink/test_worker_killed.py::test_table_when_its_engine_panics_then_it_alone_stops_until_it_is_retried"
)
_STORAGE = f"{SINK}::test_table_when_the_lakes_storage_fails_then_the_remedy_tries_it_again_at_once"
_GONE = (
    "spark_sink/test_stops.py::"
    "test_table_when_the_log_has_lost_what_it_missed_then_it_says_so_and_a_dump_begins_it_anew"
)
_PREDECESSOR = f"{SINK}::test_table_when_changes_before_a_file_are_missing_then_the_remedy_brings_its_rows"
_KILLED = (
    "spark_sink/test_worker_killed.py::test_table_when_it_kills_its_worker_then_it_alone_stops_until_it_is_retried"
)
_BOTH_LOST = f"{SINK}::test_table_when_the_lake_and_the_landing_have_lost_it_then_the_remedy_brings_its_rows"
_UNCERTAIN = f"{SINK}::test_child_when_what_a_key_did_to_it_is_not_known_then_the_remedy_brings_its_rows"
_BEREFT = f"{SINK}::test_child_when_its_parent_has_begun_anew_then_the_remedy_brings_its_rows"
_CONTRADICTED = f"{TABLE}::test_table_when_the_log_contradicts_its_definition_then_the_remedy_brings_its_rows"
_COLLATION = (
    f"{TABLE}::test_table_when_the_collation_of_a_column_is_its_owners_then_the_remedy_brings_its_other_columns"
)
_LABELS = f"{TABLE}::test_dump_when_nobody_can_tell_a_columns_labels_then_the_remedy_brings_its_other_columns"
_ROW = f"{TABLE}::test_table_when_a_row_lacks_its_values_then_the_remedy_brings_its_rows"
_MERGE = f"{TABLE}::test_table_when_rows_come_through_a_merge_table_then_the_remedy_brings_its_rows"
_ROLLBACK = f"{TABLE}::test_table_when_it_is_not_known_what_a_rollback_undid_then_the_remedy_brings_its_rows"
_CASCADES = (
    f"{TABLE}::test_table_when_a_foreign_key_changes_it_and_its_policy_is_to_stop_then_the_remedy_brings_its_rows"
)
_GONE = f"{TABLE}::test_dump_when_its_table_has_gone_then_the_remedy_brings_its_rows_once_it_is_there_again"
_STREAMS_ON = f"{TABLE}::test_dump_when_its_table_has_no_key_and_streams_on_then_the_remedy_brings_its_rows"
_LAG = f"{TABLE}::test_dump_when_the_lag_is_not_shown_then_the_grant_of_the_message_lets_it_go_on"
_UNRELATED = f"{TABLE}::test_dump_when_its_server_can_not_be_told_from_the_logs_then_the_remedy_brings_its_rows"
_BUSY = f"{TABLE}::test_dump_when_transactions_keep_its_table_busy_then_the_remedy_lets_it_go_on"
_INVALID = f"{TABLE}::test_dump_when_the_server_can_not_show_a_row_then_either_remedy_brings_its_rows"
_NO_POSITION = f"{TABLE}::test_source_when_its_committed_position_is_none_then_the_remedy_brings_its_tables"
_ENDS = (
    "agent/test_dump_servers.py::"
    "test_dump_when_the_server_ends_whenever_a_row_is_read_then_it_fails_and_leaves_the_server_alone"
)
_PLAN = "gateway/test_dumps.py::test_a_plan_by_key_when_the_dump_was_planned_without_one_ends_the_dump"
_NOTED = f"{CONTROL}::test_table_when_its_policy_is_to_note_then_the_command_of_the_note_brings_its_rows"
_SYNC = f"{CONTROL}::test_sync_when_a_command_is_refused_then_what_it_says_instead_is_taken"
_DUMP = f"{CONTROL}::test_dump_when_a_command_is_refused_then_what_it_says_instead_is_taken"
_RETENTION = f"{CONTROL}::test_dump_when_the_log_is_not_kept_long_enough_then_both_commands_of_the_message_begin_it"
_LAKES = f"{CONTROL}::test_lakes_when_one_is_unknown_or_silent_then_what_the_message_says_is_taken"
_HELD = (
    "controlplane_api/test_horizon.py::"
    "test_landing_when_a_lake_is_silent_for_a_week_then_it_waits_until_somebody_forgets_the_lake"
)
_BEHIND = (
    "spark_sink/test_horizon.py::"
    "test_lake_when_it_begins_behind_a_horizon_then_each_table_waits_for_its_dump_and_says_so"
)
_BEFORE = (
    "spark_sink/test_horizon.py::"
    "test_lake_when_it_is_before_the_logs_first_entry_then_its_sink_refuses_and_one_that_lost_its_checkpoint_goes_on"
)
_QUARANTINE = f"{CONTROL}::test_quarantine_when_it_begins_or_is_over_then_what_the_messages_say_is_taken"
_REPAIR = f"{CONTROL}::test_repair_when_it_is_impossible_then_what_it_says_instead_is_taken"
_ACCEPTANCE = f"{CONTROL}::test_acceptance_when_it_is_refused_then_what_it_says_instead_is_taken"

_IDENTITY = "controlplane_api/test_identity_remedies.py"
_ENROLMENT = f"{_IDENTITY}::test_enrolment_when_it_is_refused_then_what_the_messages_say_is_taken"
_ADMISSION = f"{_IDENTITY}::test_agent_when_its_streams_are_refused_then_what_the_messages_say_is_taken"
_EXPIRED = f"{_IDENTITY}::test_certificate_when_it_has_expired_then_what_the_messages_say_is_taken"
_UP = (
    "controlplane_api/test_cli.py::test_up_when_other_hosts_reach_it_then_the_line_that_it_prints_enrols_an_agent_there"
)
_LISTEN = (
    f"{_IDENTITY}::test_gateway_when_it_listens_beyond_loopback_without_a_ca_then_the_setting_of_the_message_starts_it"
)

_CONFIGURATION = (
    "controlplane_api/test_configurations.py::test_commands_when_they_are_refused_then_what_the_messages_say_is_taken"
)
_LOCAL = (
    "e2e/test_configured_sources.py::test_configuration_when_it_is_refused_then_the_former_one_runs_and_both_are_shown"
)
_CONFIGURED = (
    "e2e/test_configured_database.py::"
    "test_agent_when_it_has_enrolled_without_a_source_then_apply_gives_it_one_and_a_kill_and_a_bad_change_lose_nothing"
)

_PG = "agent/postgresql/test_remedies.py"
_PG_TLS = f"{_PG}::test_tls_when_it_can_not_be_verified_then_the_setting_of_the_message_verifies_it"
_PG_ADDRESS = f"{_PG}::test_address_when_nobody_is_there_then_the_settings_of_the_message_are_those_to_correct"
_PG_DATABASE = f"{_PG}::test_database_when_there_is_none_then_the_setting_of_the_message_is_the_one_to_correct"
_PG_LOGIN = f"{_PG}::test_login_when_it_is_refused_then_the_setting_or_the_statement_of_the_message_lets_it_in"
_PG_LINE = f"{_PG}::test_login_when_no_line_or_no_right_lets_it_in_then_the_line_or_the_statement_of_the_message_does"
_PG_SLOT = f"{_PG}::test_slot_when_others_have_it_then_the_setting_of_the_message_is_the_one_to_change"
_PG_SLOT_USED = f"{_PG}::test_slot_when_another_session_reads_it_then_the_setting_of_the_message_is_the_one_to_change"
_PG_STANDBY = f"{_PG}::test_standby_when_it_gives_no_changes_then_the_setting_of_the_message_names_the_primary"
_PG_FILTER = "agent/postgresql/test_publication_filter.py"
_PG_UNFILTERED = (
    f"{_PG_FILTER}::test_advice_when_the_publication_is_somebody_elses_then_its_statements_have_it_filtered"
)
_PG_UNLISTED = f"{_PG_FILTER}::test_advice_when_the_server_can_not_leave_columns_out_then_it_says_why"
_PG_KEPT_BACK = f"{_PG}::test_tables_when_they_can_not_be_read_then_the_setting_of_the_warning_keeps_them_back"
_PG_CHECKS = "agent/postgresql/test_checks.py"
_PG_GRANTS = f"{_PG_CHECKS}::test_advice_when_privileges_lack_then_its_statements_give_them"
_PG_MANY_GRANTS = f"{_PG_CHECKS}::test_advice_when_many_tables_lack_then_the_statements_are_of_their_schemas"
_PG_SESSIONS = "agent/postgresql/test_sessions.py"
_PG_CONNECT = f"{_PG_SESSIONS}::test_database_when_the_user_may_not_enter_then_the_statement_of_the_message_lets_it_in"
_PG_PUBLICATION = "agent/postgresql/test_publication.py"
_PG_IDENTITY = (
    f"{_PG_PUBLICATION}::"
    "test_table_when_nothing_identifies_its_rows_then_it_is_not_added_and_its_owner_can_still_change_it"
)
_PG_IDENTITY_LOST = (
    "agent/postgresql/test_identity_lost.py::"
    "test_identity_when_a_published_table_loses_it_then_the_source_warns_and_the_statement_of_the_message_mends_it"
)
_PG_UNLOGGED = f"{_PG_PUBLICATION}::test_table_when_unlogged_then_the_statement_of_the_message_has_it_logged"
_PG_PUBLISHED = (
    f"{_PG_PUBLICATION}::test_publication_when_the_user_may_not_make_it_then_the_statements_of_the_message_do"
)
_PG_PARTITION = f"{_PG_PUBLICATION}::test_partitioned_table_when_a_partition_has_no_identity_then_the_message_names_it"
_PG_READING = "agent/postgresql/test_reading.py"
_PG_SELECT = f"{_PG_READING}::test_plan_when_the_user_may_not_read_the_table_then_the_grant_is_named"
_PG_POLICIES = f"{_PG_READING}::test_plan_when_policies_hide_rows_then_none_is_left_out"
_PG_OPERATORS = (
    "agent/postgresql/test_walk.py::"
    "test_plan_when_operators_of_a_key_may_not_be_used_then_the_statement_of_the_message_mends_it"
)
_PG_DUMPS = "agent/postgresql/test_dump_conditions.py"
_PG_UNRELATED = (
    f"{_PG_DUMPS}::test_dump_when_rows_are_another_primarys_then_the_setting_of_the_message_names_the_servers"
)
_PG_DAMAGED = (
    f"{_PG_DUMPS}::"
    "test_dump_when_a_row_can_not_be_read_then_it_fails_there_and_the_setting_of_the_message_leaves_it_out"
)
_PG_OTHER = (
    "agent/postgresql/test_log_gone.py::"
    "test_server_when_it_is_another_one_then_nothing_is_made_there_before_it_is_accepted"
)
_PG_TABLE = "agent/postgresql/test_table_remedies.py"
_PG_RENAMED = (
    f"{_PG_TABLE}::test_table_when_an_ignored_column_gets_another_name_then_the_remedy_brings_its_other_columns"
)
_PG_POLICY = f"{_PG_TABLE}::test_table_when_its_policy_is_to_stop_then_the_remedy_brings_its_rows"
_PG_ROW = f"{_PG_TABLE}::test_table_when_a_row_is_too_large_then_the_remedy_brings_its_rows"
_PG_COLUMNS = f"{_PG_TABLE}::test_table_when_it_has_too_many_columns_then_the_remedy_brings_its_rows"
_PG_NO_POSITION = f"{_PG_TABLE}::test_source_when_its_committed_position_is_none_then_the_remedy_brings_its_tables"
_PG_NAMED = f"{_PG_TABLE}::test_server_when_it_is_another_one_then_the_setting_of_the_message_names_the_right_one"

RUN_BY = {
    "controlplane_api/offsets.py alter": (
        "controlplane_api/test_offsets.py::test_offset_when_set_by_the_command_then_it_says_what_that_leads_to",
    ),
    "agent/sources/postgresql/server/checks.py _unreadable": (_PG_GRANTS, _PG_MANY_GRANTS),
    "agent/sources/postgresql/server/checks.py _unread": (_PG_KEPT_BACK,),
    "agent/sources/postgresql/server/checks.py _unfiltered": (_PG_UNFILTERED, _PG_UNLISTED),
    "agent/sources/postgresql/server/connection.py _access_denied": (_PG_LOGIN,),
    "agent/sources/postgresql/server/connection.py _connect_error": (_PG_LINE, _PG_DATABASE),
    "agent/sources/postgresql/server/connection.py _login_unsafe": (_PG_UNSAFE,),
    "agent/sources/postgresql/server/connection.py grant_missing": (_PG_CONNECT,),
    "agent/sources/postgresql/server/publication.py _error": (_PG_PUBLISHED, _PG_PARTITION),
    "agent/sources/postgresql/server/publication.py _identity_lack": (_PG_IDENTITY, _PG_IDENTITY_LOST),
    "agent/sources/postgresql/server/publication.py _missing": (_PG_UNLOGGED,),
    "agent/sources/postgresql/server/slot.py standby_unable": (_PG_STANDBY,),
    "agent/sources/postgresql/server/sockets.py _tls_context": (_PG_TLS,),
    "agent/sources/postgresql/server/sockets.py _tls_failed": (_PG_TLS,),
    "agent/sources/postgresql/server/sockets.py unreachable": (_PG_ADDRESS,),
    "agent/sources/postgresql/server/wire.py slot_error": (_PG_SLOT,),
    "agent/sources/postgresql/server/wire.py slot_in_use": (_PG_SLOT_USED,),
    "agent/sources/postgresql/snapshot/positions.py Positions._unrelated": (_PG_UNRELATED,),
    "agent/sources/postgresql/snapshot/reading.py PostgresqlTableReader._check_schemas": (_PG_OPERATORS,),
    "agent/sources/postgresql/snapshot/reading.py PostgresqlTableReader._grant_missing": (_PG_SELECT, _PG_POLICIES),
    "agent/sources/postgresql/snapshot/results.py TablePlan.invalid": (_PG_DAMAGED,),
    "agent/sources/postgresql/stream/starts.py WalStart._accept": (_PG_OTHER, _PG_NAMED),
    "agent/sources/postgresql/stream/starts.py WalStart.stored": (_PG_NO_POSITION,),
    "agent/sources/postgresql/failures.py ignored_renamed": (_PG_RENAMED,),
    "agent/sources/postgresql/failures.py columns_unsupported": (_PG_COLUMNS,),
    "agent/sources/postgresql/failures.py row_unreadable": (_PG_ROW,),
    "agent/sources/postgresql/failures.py rows_unlogged": (_PG_POLICY,),
    "agent/filter.py Filter.denial": (_DROPPED, _RENAMED),
    "agent/veto/local_policy.py SourceVeto.denial": (_HOST_POLICY,),
    "agent/filter.py _table_unknown": (_CHECKS,),
    "agent/filter.py _column_unknown": (_CHECKS,),
    "agent/filter.py _ignored_key": (_CHECKS,),
    "agent/snapshot/failures.py column_unsupported": (_LABELS,),
    "agent/snapshot/failures.py key_changed": (_DUMPS,),
    "agent/snapshot/failures.py server_ends": (_ENDS,),
    "agent/snapshot/failures.py sync_goes_on": (_STREAMS_ON,),
    "agent/snapshot/failures.py unrepairable": (_REPAIR,),
    "agent/snapshot/failures.py table_gone": (_GONE,),
    "agent/sources/mysql/failures.py": (_UNNAMED_KEY,),
    "agent/sources/mysql/snapshot/load.py LoadReader._lag_grant_missing": (_LAG,),
    "agent/sources/mysql/snapshot/mariadb_other_server.py MariadbOtherServer._unrelated": (_UNRELATED,),
    "agent/sources/mysql/snapshot/results.py RowsPlan.invalid": (_INVALID,),
    "agent/sources/mysql/snapshot/snapshots.py _kept_busy": (_BUSY,),
    "agent/sources/mysql/snapshot/snapshots.py _lock_grant_missing": (_NO_GTIDS,),
    "agent/sources/mysql/snapshot/snapshots.py select_positions": (_NO_GTIDS_AT_THE_REPLICA,),
    "agent/sources/mysql/snapshot/transactional.py check_engine": (_DUMPS,),
    "agent/sources/mysql/failures.py ignored_renamed": (_IGNORED,),
    "agent/sources/mysql/failures.py row_unreadable": (_ROW,),
    "agent/sources/mysql/failures.py rows_missing": (_MERGE, _CASCADES),
    "agent/sources/mysql/failures.py rows_uncertain": (_ROLLBACK,),
    "agent/sources/mysql/failures.py rows_unlogged": (_POLICY,),
    "agent/sources/mysql/failures.py _rows_in_the_log": (_STATEMENT, _PRECISE),
    "agent/sources/mysql/failures.py statement_logged": (_STATEMENT, _PRECISE),
    "agent/sources/mysql/server/transaction_precise.py PreciseTable.statements": (_PRECISE,),
    "agent/sources/mysql/schema/table_planner.py": (_CONTRADICTED, _UNKNOWN),
    "agent/sources/mysql/schema/table_planner.py TablePlanner._error": (_UNKNOWN,),
    "agent/sources/mysql/schema/table_planner.py TablePlanner._ignore_or_upgrade": (_COLLATION,),
    "agent/doctor/host.py _enrol": (_EXPIRED,),
    "agent/sources/mysql/doctor/checks.py": (_DOCTOR,),
    "agent/sources/mysql/doctor/checks.py _grant": (_DOCTOR,),
    "agent/sources/mysql/doctor/checks.py _revocation": (_DOCTOR,),
    "agent/sources/mysql/doctor/checks.py _run": (_DOCTOR,),
    "agent/sources/mysql/doctor/checks.py _tables": (_DOCTOR,),
    "agent/sources/mysql/doctor/checks.py binlog_row_value_options": (_DOCTOR,),
    "agent/sources/mysql/doctor/grants.py least_grants": (_DOCTOR,),
    "agent/sources/postgresql/doctor/examination.py grants": (_PG_DOCTOR,),
    "agent/sources/mysql/server/checks.py": (_LOG,),
    "agent/sources/mysql/server/checks.py _check_partial_json": (_JSON,),
    "agent/sources/mysql/server/checks.py duplicate_id": (_SERVER_ID,),
    "agent/sources/mysql/server/connection.py _connect_error": (_TLS, _LOGIN, _ADDRESS),
    "agent/sources/mysql/server/connection.py _login_unsafe": (_UNSAFE,),
    "agent/sources/mysql/server/connection.py _tls_context": (_TLS,),
    "agent/sources/mysql/server/connection.py grant_missing": (_GRANTS,),
    "agent/sources/mysql/server/continuity.py": (_PURGED,),
    "agent/sources/mysql/server/continuity.py Continuity._accept": (_REPLACED,),
    "agent/sources/mysql/server/replication.py _dump_command": (_NO_POSITION,),
    "agent/capture/gaps.py stop_of": (_PURGED,),
    "agent/cli.py _enrol": (_ENROLMENT,),
    "agent/config.py _gateway": (_ENROLMENT,),
    "agent/identity.py IdentityFile.check_expiry": (_EXPIRED,),
    "agent/snapshot/failures.py no_snapshots": (_NO_SNAPSHOTS,),
    "agent/sources/mysql/snapshot/log_retention.py _expiry": (_SHORT,),
    "agent/sources/mysql/stream/starts.py BinlogStart.stored": (_NO_POSITION,),
    "controlplane_api/acceptance.py accept": (_ACCEPTANCE,),
    "controlplane_api/acceptance.py offered": (_ACCEPTANCE,),
    "controlplane_api/api/client.py ApiClient._ask": (_LOST,),
    "controlplane_api/api/dump_queries.py dump": (_DUMP,),
    "controlplane_api/api/stages.py agent_away": (_AWAY,),
    "controlplane_api/api/stages.py lake_silent": (_LAKES,),
    "controlplane_api/api/table_reason_words.py": (_REASONS,),
    "controlplane_api/commands/dump.py _find": (_DUMP,),
    "controlplane_api/commands/filter.py": (_LEAVES,),
    "controlplane_api/commands/filter.py alter": (_FILTER,),
    "controlplane_api/commands/show.py _only_source": (_LISTED,),
    "controlplane_api/commands/tables.py parse_table": (_LISTED,),
    "controlplane_api/commands/why.py _meant": (_LISTED,),
    "controlplane_api/table_filter.py changed": (_FILTER,),
    "controlplane_api/commands/lag_causes.py _dump": (_WHY,),
    "controlplane_api/commands/lag_causes.py _not_run": (_WHY,),
    "controlplane_api/commands/show.py _note": (_NOTED,),
    "controlplane_api/commands/up.py _first_step": (_UP,),
    "controlplane_api/dumps.py _anew": (_DUMP,),
    "controlplane_api/dumps.py refusal": (_SYNC,),
    "controlplane_api/dumps.py _runs_already": (_DUMP,),
    "controlplane_api/repairs.py _impossible": (_REPAIR,),
    "controlplane_api/dumps.py dump_of": (_DUMP,),
    "controlplane_api/dumps.py pause": (_DUMP,),
    "controlplane_api/identity/agents.py add": (_ENROLMENT,),
    "controlplane_api/identity/agents.py agent_row": (_ENROLMENT,),
    "controlplane_api/identity/agents.py enrol": (_ENROLMENT,),
    "controlplane_api/identity/authority.py SqlAuthority.renew": (_ADMISSION,),
    "controlplane_api/identity/certificates.py _invalid": (_ADMISSION,),
    "controlplane_api/identity/tokens.py _refused": (_ENROLMENT,),
    "controlplane_api/identity/tokens.py create": (_ENROLMENT,),
    "controlplane_api/identity/tokens.py revoke": (_ENROLMENT,),
    "controlplane_api/lakes.py _create": (_LAKES,),
    "controlplane_api/lakes.py forget_lake": (_LAKES,),
    "controlplane_api/lost_state.py source_problem": (_LOST,),
    "controlplane_api/lost_state.py table_problem": (_LOST,),
    "controlplane_api/quarantines.py held_row": (_QUARANTINE,),
    "controlplane_api/recovery.py _retry_refusal": (_SYNC,),
    "controlplane_api/registry/horizons.py _of_lake": (_HELD,),
    "controlplane_api/registry/horizons.py _held": (_QUARANTINE,),
    "controlplane_api/registry/quarantine.py _problem": (_QUARANTINE,),
    "controlplane_api/registry/dump_reports.py _shortage": (_RETENTION, _SHORT),
    "controlplane_api/rereads.py _limit_problem": (_LIMIT,),
    "controlplane_api/syncs.py _notice": (_SYNC,),
    "controlplane_api/syncs.py _refusal": (_REFUSED, _SYNC),
    "gateway/config.py GatewayConfig.__post_init__": (_LISTEN,),
    "gateway/identity.py": (_ADMISSION,),
    "gateway/identity.py check_standing": (_ADMISSION,),
    "gateway/identity.py not_assigned": (_ADMISSION,),
    "agent/remote_sources.py _is_local": (_LOCAL,),
    "controlplane_api/fleets.py _agent": (_CONFIGURED,),
    "controlplane_api/source_configurations.py _check_before": (_CONFIGURATION,),
    "controlplane_api/source_configurations.py not_configured": (_CONFIGURATION,),
    "controlplane_api/source_configurations.py remove": (_CONFIGURATION,),
    "gateway/landing/committer.py quarantined": (_QUARANTINE,),
    "gateway/streams_service.py _leave_when_expired": (_EXPIRED,),
    "gateway/streams/dumps.py Dumps._record_plan": (_PLAN,),
    "spark_sink/ingest/new_beginning.py _parent_begun_anew": (_BEREFT,),
    "spark_sink/ingest/isolation.py worker_killed": (_KILLED,),
    "spark_sink/ingest/horizon.py _stops": (_BEHIND,),
    "spark_sink/ingest/missed_rows.py entries_gone": (_GONE,),
    "spark_sink/landed/landing_log.py log_entry_missing": (_BEFORE,),
    "spark_sink/ingest/table_task.py unexpected_stop": (_UNEXPECTED,),
    "spark_sink/ingest/table_task.py with_storage_retries": (_STORAGE,),
    "spark_sink/lake/recorded.py check_predecessors": (_PREDECESSOR,),
    "spark_sink/lake/foreign_keys.py uncertain": (_UNCERTAIN,),
    "spark_sink/lake/recorded.py _lost": (_BOTH_LOST,),
    "spark_sink/lake/steps.py check_partial": (_IN_PARTS, _UNNAMED_KEY),
    "spark_sink/lake/chunk_merge.py _check_kept": (
        f"{SINK}::test_table_when_a_chunk_needs_changes_that_are_gone_then_the_remedy_brings_its_rows",
    ),
    "spark_sink/lake/schema_policy.py _changed": (
        f"{SINK}::test_table_whose_schema_shall_not_change_when_it_does_then_either_remedy_brings_its_rows",
    ),
    "spark_sink/lake/schema_policy.py Following._ignoring": (
        f"{SINK}::test_table_that_ignores_changes_when_its_key_is_not_followed_then_the_remedy_brings_its_rows",
    ),
    "spark_sink/lake/table_options.py check_options": (
        f"{SINK}::test_table_whose_options_change_when_it_has_rows_then_either_remedy_brings_its_rows",
    ),
    "spark_sink/lake/table_options.py without_key": (
        f"{SINK}::test_table_without_a_key_when_its_deleted_rows_shall_stay_then_the_remedy_brings_its_rows",
    ),
    "spark_sink/lake/steps.py check_steps": (_RANGE,),
    "spark_sink/landed/event_columns.py _earlier_value": (_EARLIER,),
    "spark_sink/landed/landed_file.py open_landed": (_DAMAGED,),
    "spark_sink/landed/landed_file.py restored_or_anew": (_DAMAGED, _LAKE),
    "spark_sink/landed/landed_file.py unreadable": (_DAMAGED, _LAKE),
}
#: texts that name one for another reason
NO_REMEDIES = {
    "agent/cli.py _add_enrol": "help for an option",
    "agent/cli.py _parser": "the program's name",
    "spark_sink/run_arguments.py parser": "the program's name",
    "agent/sources/mysql/ddl/statements.py": "words of SQL",
    "agent/sources/mysql/snapshot/log_retention.py _managed_statement": "a call that only servers of Amazon have",
    "agent/remote_document.py entry_of": "where a setting was found",
    "agent/sources/mysql/doctor/examination.py gather": "where a setting was found",
    "agent/sources/postgresql/doctor/examination.py gather": "where a setting was found",
    "agent/snapshot/throttle.py Throttle.__init__": "where a setting was found",
    "controlplane_api/commands/up.py _locked": "what was found",
    "proto/menura/naming.py": "the helpers themselves",
    "spark_sink/work.py": "the helpers themselves",
}


@cache
def remedies() -> dict[str, list[str]]:
    """All texts that name one, by file and function."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(file.read_text())
            documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for place, text in _texts(tree, (), documents):
                if REMEDY.search(text):
                    found.setdefault(f"{file.relative_to(ROOT)} {'.'.join(place)}".strip(), []).append(text)
    return found


def _texts(node: ast.AST, place: tuple[str, ...], documents: set[int]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Functions and what stands in them: texts, with what is put into them as it is written, and calls of helpers."""
    if id(node) in documents:
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        place = (*place, node.name)
    if isinstance(node, ast.JoinedStr):
        yield place, ast.unparse(node)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield place, node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in HELPERS:
        yield place, ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from _texts(child, place, documents)


def _is_no_remedy(site: str) -> bool:
    return site in NO_REMEDIES or site.partition(" ")[0] in NO_REMEDIES


def test_remedies_when_a_text_names_one_then_a_test_runs_it() -> None:
    found = {site: texts for site, texts in remedies().items() if not _is_no_remedy(site)}
    assert len(found) > 60
    assert {site: texts for site, texts in found.items() if site not in RUN_BY} == {}
    assert RUN_BY.keys() - found.keys() == set()
    assert all(any(site in (each, each.partition(" ")[0]) for each in remedies()) for site in NO_REMEDIES)


def test_remedies_when_a_test_is_named_then_there_is_one() -> None:
    named = {test for tests in RUN_BY.values() for test in tests}
    for test in sorted(named):
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, test
