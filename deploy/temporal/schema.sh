#!/bin/sh
# Brings Temporal's two databases to the shape that this version of the server needs; a second
# run changes nothing. SQL_HOST, SQL_PORT, SQL_USER, SQL_PASSWORD and SQL_PLUGIN say where.
set -eu

bring_up_to_date() {
    temporal-sql-tool --db "$1" setup-schema -v 0.0
    temporal-sql-tool --db "$1" update-schema --schema-name "postgresql/v12/$2"
}

bring_up_to_date temporal temporal
bring_up_to_date temporal_visibility visibility
