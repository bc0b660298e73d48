"""Names that are an API: the workflow type, its handlers, and the search attributes."""

from __future__ import annotations

from typing import Final

from temporalio.common import SearchAttributeKey

WORKFLOW: Final = "AgentRun"
MODEL_RUN: Final = "ModelRun"
PING: Final = "Ping"
RECONCILE: Final = "Reconcile"
UNWIND: Final = "Unwind"
#: Workflows of ours that are no runs. Any other may be one: users have workflows of their own.
NO_RUNS: Final = frozenset({PING, RECONCILE, UNWIND})

#: In lines that are shown to be pasted: for the reader to replace.
YOUR_NAME: Final = "YOUR-NAME"

#: Signals between a run and its child runs. What people send is ``contracts.Verb``.
CHILD: Final = "child"
FORWARDED: Final = "forwarded"

#: Queries.
VIEW: Final = "view"
CHECKPOINT: Final = "checkpoint"

#: Search attributes are never encrypted by a codec: no params, no names of people.
RUN_STATE: Final = SearchAttributeKey.for_keyword("RunState")
TENANT: Final = SearchAttributeKey.for_keyword("Tenant")
#: How much waits for a human: of the run itself, its child runs have their own.
OPEN_ITEMS: Final = SearchAttributeKey.for_int("OpenItems")
SEARCH_ATTRIBUTES: Final = (RUN_STATE, TENANT, OPEN_ITEMS)
#: Search for runs, of plans and of code: only they have a state.
IS_RUN: Final = f"{RUN_STATE.name} IS NOT NULL"
