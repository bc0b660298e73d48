#!/bin/sh
# Creates the namespace and the search attributes that runs set; a second run changes nothing.
set -eu

: "${TEMPORAL_ADDRESS:?where the server is, host:port}" "${TEMPORAL_NAMESPACE:?which one to create}"
: "${NAMESPACE_RETENTION:?how long ended runs stay visible, e.g. 30d}"

# The server listens before it serves, and a new namespace is known to all of it only after its
# caches were refreshed (up to 10 seconds): each command is tried until it works.
try() {
    tries=60
    until "$@"; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ]; then
            echo "gave up after 60 seconds: $*" >&2
            exit 1
        fi
        sleep 1
    done
}

namespace() {
    # Named, because these two commands do not take it from TEMPORAL_NAMESPACE.
    temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" > /dev/null 2>&1 \
        || temporal operator namespace create \
            --namespace "$TEMPORAL_NAMESPACE" --retention "$NAMESPACE_RETENTION"
}

search_attribute() {
    temporal operator search-attribute list | grep -Eq "^ *$1 +$2 *\$" \
        || temporal operator search-attribute create --name "$1" --type "$2"
}

try temporal operator cluster health
try namespace
try search_attribute RunState Keyword
try search_attribute Tenant Keyword
try search_attribute OpenItems Int
try search_attribute Plan Keyword
