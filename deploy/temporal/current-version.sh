#!/bin/sh
# Has new runs begin on a version of the workers.
set -eu

: "${TEMPORAL_ADDRESS:?where the server is, host:port}" "${TEMPORAL_NAMESPACE:?of the runs}"
: "${SUREHAND_BUILD_ID:?which version}"

# The server knows a version once a worker of it has polled, which takes seconds.
tries=60
until temporal worker deployment set-current-version --namespace "$TEMPORAL_NAMESPACE" \
    --deployment-name surehand --build-id "$SUREHAND_BUILD_ID" --yes; do
    tries=$((tries - 1))
    if [ "$tries" -eq 0 ]; then
        echo "gave up after 60 tries: is a worker with SUREHAND_BUILD_ID=$SUREHAND_BUILD_ID running?" >&2
        exit 1
    fi
    sleep 1
done
