"""One transaction of one tenant: what is locked in it, asked and written, its events last."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import BindParameter, Connection, Insert, Table, Update, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import StatementError

from surehand.activities.ledger.core.engine import (
    lock_name,
    lock_statement,
    read_clock,
    try_lock_names,
)
from surehand.activities.ledger.core.sealed import (
    OF_RUN,
    KeyNeeded,
    KnownKey,
    Members,
    SealedValue,
    Sealing,
    sealed_body,
    sealing,
)
from surehand.activities.ledger.core.statements import (
    OF_TENANT,
    PreparedStatement,
    as_sqlalchemy,
    insert_row,
    insert_rows,
    plain,
    rows_of,
    run_together,
    update_rows,
)
from surehand.activities.ledger.core.tables import events, runs
from surehand.process.exits import NoSuchRun, WrongUse
from surehand.process.settings import KEYS
from surehand.workflows.canonical_json import canonical_json, digest
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.payload_codec import KeyErased

#: The head of a run that has no event yet.
GENESIS: Final = "sha256:" + "0" * 64


def event_hash(previous: str, event: dict[str, Any]) -> str:
    """Return the hash of an event that follows ``previous``."""
    return "sha256:" + hashlib.sha256(previous.encode() + b"\n" + canonical_json(event)).hexdigest()


class RunNotFound(NoSuchRun):
    """There is no such run in this tenant."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run not found: {run_id}")


class Observer(Protocol):
    """Told what the ledger does; it must be quick and never raise."""

    def transaction(self, outcome: str, seconds: float) -> None:
        """Take note of a transaction: ``committed``, ``rolled_back`` or ``unavailable``."""

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        """Take note of an event that is committed."""


_CLOSED: Final = (SealedValue, Members)
#: An answer that is the same in all runs: that somebody has given another one, who has no key sees.
_TELLS_NOTHING: Final = frozenset((digest("accept"),))

_CHAIN: Final = PreparedStatement(
    rows_of(runs, runs.c.seq, runs.c.head, run_id=bindparam("of_run"))
    # NO KEY: rows that refer to this run, inserted by parallel steps, hold a share of it.
    .with_for_update(key_share=True)
)
_MOVE: Final = PreparedStatement(
    update_rows(
        runs, run_id=bindparam("of_run"), seq=bindparam("from_seq"), head=bindparam("from_head")
    ).values(seq=bindparam("to_seq"), head=bindparam("to_head"))
)
_EVENT: Final = ("run_id", "seq", "type", "step_id", "body", "at_ms", "previous", "hash")
_OPENING: Final = PreparedStatement(
    rows_of(
        events, events.c.body, events.c.at_ms, run_id=bindparam("of_run"), seq=1
    ).execution_options(sealed="stored")
)


def _runnable(statement: Any, values: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return a statement as it is run, with its values."""
    known = None if values else plain(statement)
    return (as_sqlalchemy(statement), values) if known is None else known


class Opening(NamedTuple):
    """The first event of a run; what of it is sealed is left so."""

    body: Mapping[str, Any]
    at_ms: int


@dataclass
class PendingEvent:
    """An event that waits for the end of its transaction to get its place in the chain."""

    type: str
    step_id: str | None
    body: dict[str, Any]
    """As it is chained."""
    said: dict[str, Any]
    """What of it may be told outside of the ledger."""
    seq: int = 0
    """Its place, once it has one."""


class _Sent(NamedTuple):
    """A statement that waits to be run."""

    sql: str
    parameters: Any = None
    then: Callable[[Any], None] | None = None
    """Gets its cursor."""


@dataclass
class Transaction:
    """One transaction of one tenant."""

    _connection: Connection
    tenant: str
    now_ms: int
    """The database's clock at the start of the transaction, or at its newest ``tick``."""
    began: float
    """This process's own clock before that was read: a lease that is written lasts from then on."""
    channels: tuple[str, ...] = ()
    """The notifiers by which people are told what happens in it."""
    passkey_origins: tuple[str, ...] = ()
    """The pages whose passkeys' proofs count in it."""
    pending: dict[str, list[PendingEvent]] = field(default_factory=lambda: defaultdict(list))
    has_news: bool = False
    """There is something in it to tell people."""
    heads: dict[str, ChainHead] = field(default_factory=dict)
    """The head of each run that got an event or was watched; filled when the transaction ends."""
    last_seen: Mapping[str, ChainHead] = field(default_factory=dict)
    """Heads as an earlier transaction has left them: a guess, and right where one worker is on."""
    keys: KnownKey | None = None
    """The keys of runs that are at hand; ``None``: nothing is sealed."""
    _watched: set[str] = field(default_factory=set)
    _locked: dict[str, ChainHead] = field(default_factory=dict)
    _waiting: list[_Sent] = field(default_factory=list)
    """What was sent and is run with the next statement: on PostgreSQL, in one trip."""

    @property
    def connection(self) -> Connection:
        """Its connection, once all that was sent has been run."""
        self._run_waiting()
        return self._connection

    @property
    def dialect(self) -> str:
        """Its database: ``sqlite`` or ``postgresql``."""
        return self._connection.dialect.name

    def _run_waiting(self) -> list[Any]:
        """Run what waits, and return the cursors."""
        sent, self._waiting = self._waiting, []
        cursors = run_together(self._connection, [(one.sql, one.parameters) for one in sent])
        for one, cursor in zip(sent, cursors, strict=True):
            if one.then is not None:
                one.then(cursor)
        return cursors

    def lock_step(self, run_id: str, step_id: str) -> None:
        """Let a step's claim and its undoing never pass each other unseen."""
        lock_name(self.connection, self._name_of("step", run_id, step_id))

    def lock_key(self, tool: str, key: str) -> None:
        """Let claims of one business key follow one another."""
        lock_name(self.connection, self._name_of("key", tool, key))

    def lock_run(self, run_id: str) -> None:
        """Let no call of a run be claimed meanwhile; before every other lock."""
        lock_name(self.connection, self._name_of("run", run_id))

    def share_run(self, run_id: str) -> None:
        """Let no other execution take a run over meanwhile; before every lock but other runs'."""
        lock_name(self.connection, shared=(self._name_of("run", run_id),))

    def lock_calls(self) -> None:
        """Let no call of the tenant begin meanwhile; the clock is read once those before are over.

        A transaction that takes it has no other lock: everything that begins a call shares it.
        """
        self.take_turn("calls")

    def share_calls(self) -> None:
        """Let nobody halt calls meanwhile, as of the next statement; before every other lock."""
        if self.dialect != "sqlite":
            self._waiting.append(_Sent(*lock_statement(shared=(self._name_of("calls"),))))

    def lock_call(self, run_id: str, step_id: str, tool: str, key: str) -> None:
        """Share the tenant's calls and the run, lock a step, then a business key; read the clock.

        It is done with the next statement, which sees what is there then.
        """
        if self.dialect == "sqlite":
            return
        names, shared = self._locks_of_call(run_id, step_id, tool, key)
        locked = lock_statement(*names, shared=shared)
        self._waiting.append(_Sent(*locked, self._note_clock))

    def _note_clock(self, cursor: Any) -> None:
        self.now_ms = max(self.now_ms, int(cursor.fetchone()[-1]))

    def try_lock_call(self, run_id: str, step_id: str, tool: str, key: str) -> bool:
        """Lock the same if nobody has any of it; ``False``: somebody has."""
        names, shared = self._locks_of_call(run_id, step_id, tool, key)
        return try_lock_names(self.connection, *names, shared=shared)

    def lock_resource(self, resource: str) -> None:
        """Let leases of one resource follow one another; several are locked in order of names."""
        lock_name(self.connection, self._name_of("resource", resource))

    def take_turn(self, kind: str, *names: str) -> None:
        """Wait until nobody else holds this lock of the tenant's, then read the clock."""
        self.now_ms = max(self.now_ms, lock_name(self.connection, self._name_of(kind, *names)))

    def _locks_of_call(
        self, run_id: str, step_id: str, tool: str, key: str
    ) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the names of the locks of a call, and of those that it shares."""
        names = (self._name_of("step", run_id, step_id), self._name_of("key", tool, key))
        return names, (self._name_of("calls"), self._name_of("run", run_id))

    def _name_of(self, kind: str, *names: str) -> str:
        """Return the name of a lock of the tenant's."""
        return ":".join((kind, self.tenant, *names))

    def tick(self) -> None:
        """Read the clock again: after waiting for a lock, what was read before it is too early."""
        self.now_ms = max(self.now_ms, read_clock(self.connection))

    def event(self, run_id: str, type_: str, *, step_id: str | None = None, **body: Any) -> None:
        """Add an event to a run; it gets its ``seq`` when the transaction ends."""
        said = stored = {k: v for k, v in body.items() if v is not None}
        if self.keys is not None:
            of = Sealing(self.tenant, run_id, self.keys)
            stored = sealed_body(of, said, _TELLS_NOTHING)
            said = {name: value for name, value in said.items() if stored[name] is value}
        self.pending[run_id].append(PendingEvent(type_, step_id, stored, said))

    def list_told(self, run_id: str, step_id: str | None, type_: str) -> list[dict[str, Any]]:
        """Return what events of a type have told of a step; ``None``: of the run itself."""
        named = {"run_id": run_id, "step_id": step_id, "type": type_}
        return [row["body"] for row in self.all(rows_of(events, events.c.body, **named))]

    def lock_chain(self, run_id: str) -> ChainHead:
        """Take a run's chain now, after every other row lock, and return its head."""
        if run_id not in self._locked:
            self._locked[run_id] = self._chain(run_id)
        return self._locked[run_id]

    def begin_chain(self, run_id: str) -> None:
        """Take note that this transaction has inserted a run: nobody else knows its chain."""
        self._locked[run_id] = ChainHead(seq=0, hash=GENESIS)

    def opening(self, run_id: str) -> Opening | None:
        """Return how a run was opened, also if it was erased; ``None``: it never was."""
        row = self.one(_OPENING, of_run=run_id)
        return None if row is None else Opening(row["body"], row["at_ms"])

    def one(self, statement: Any, **values: Any) -> dict[str, Any] | None:
        statement, given = _runnable(statement, values)
        rows = self._rows(statement, given)
        return self._opened(statement, given, rows[:1])[0] if rows else None

    def all(self, statement: Any, **values: Any) -> list[dict[str, Any]]:
        statement, given = _runnable(statement, values)
        return self._opened(statement, given, self._rows(statement, given))

    def _rows(self, statement: Any, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        if isinstance(statement, PreparedStatement):
            compiled = statement.compiled(self._connection.dialect)
            return compiled.rows(self._run(statement, values))
        return [dict(row) for row in self._run(statement, values).mappings()]

    def _opened(
        self, statement: Any, values: Mapping[str, Any], found: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return rows with their sealed cells opened, as the statement's options say.

        Options: ``stored`` leaves them as they are, ``shown`` marks those of erased runs.
        """
        closed = [
            (row, name, value)
            for row in found
            for name, value in row.items()
            if type(value) in _CLOSED
        ]
        if not closed:
            return found
        how = statement.get_execution_options().get("sealed")
        if how == "stored":
            for row, name, value in closed:
                row[name] = value.stored if isinstance(value, Members) else value
            return found
        if self.keys is None:
            root = next(iter(closed[0][2].roots()))
            raise WrongUse(
                f"what run {root} has sent and kept is encrypted, and {KEYS} is not set here"
            )
        missing = {root for _, _, value in closed for root in value.roots()}
        missing = {root for root in missing if self.keys(root) is None}
        if missing:
            raise KeyNeeded(missing, make=False)
        of_run, shown = self._run_of(statement, values), how == "shown"
        for row, name, value in closed:
            run_id = row.get("run_id", of_run)
            row[name] = value.opened(self.tenant, run_id, self.keys, shown=shown)
        return found

    def _run_of(self, statement: Any, values: Mapping[str, Any]) -> str | None:
        """Return the run that a statement names."""
        of_run = statement.get_execution_options().get(OF_RUN, values.get("run_id"))
        if isinstance(of_run, BindParameter):
            of_run = values.get(of_run.key)
        return of_run if isinstance(of_run, str) else None

    def read_run(self, run_id: str, *columns: Any) -> dict[str, Any]:
        """Return what the ledger knows of a run; raises ``RunNotFound`` if nothing."""
        row = self.one(rows_of(runs, *columns, run_id=run_id))
        if row is None:
            raise RunNotFound(run_id)
        return row

    def value(self, statement: Any, **values: Any) -> Any:
        """Return the first value of the first row; ``None``: there is no row, or it is NULL."""
        row = self.one(statement, **values)
        return None if row is None else next(iter(row.values()))

    def read_column(self, statement: Any, **values: Any) -> list[Any]:
        """Return the first value of each row."""
        return [next(iter(row.values())) for row in self.all(statement, **values)]

    def has(self, statement: Any, **values: Any) -> bool:
        """Return whether there is any such row."""
        return bool(self._rows(*_runnable(statement, values)))

    def count(self, statement: Any, **values: Any) -> int:
        """Return what a statement counts: the one value of its one row."""
        [row] = self._rows(*_runnable(statement, values))
        [counted] = row.values()
        return int(counted)

    def execute(self, statement: Any, **values: Any) -> int:
        """Run a statement and return the number of rows it touched."""
        return int(self._run(*_runnable(statement, values)).rowcount)

    def send(self, statement: Any, **values: Any) -> None:
        """Run a statement of which nothing is read; it may wait for the next one to be run with it.

        What is wrong with it, that one raises.
        """
        statement, given = _runnable(statement, values)
        if self.dialect == "sqlite" or not isinstance(statement, PreparedStatement):
            self._run(statement, given)
        else:
            self._queue_statement(statement, given)

    def _run(self, statement: Any, values: Mapping[str, Any]) -> Any:
        """Run what is a statement of this tenant by this alone, and return its cursor."""
        if isinstance(statement, PreparedStatement):
            self._queue_statement(statement, values)
            return self._run_waiting()[-1]
        given = {**values, OF_TENANT.key: self.tenant}
        if self.keys is None or not isinstance(statement, Insert | Update):
            return self.connection.execute(statement, given)
        try:
            with sealing(Sealing(self.tenant, self._run_of(statement, values), self.keys)):
                return self.connection.execute(statement, given)
        except StatementError as error:
            # As it was raised where a value was sealed.
            if isinstance(error.orig, KeyNeeded | KeyErased):
                raise error.orig from None
            raise

    def _queue_statement(self, statement: PreparedStatement, values: Mapping[str, Any]) -> None:
        given = {**values, OF_TENANT.key: self.tenant}
        compiled = statement.compiled(self._connection.dialect)
        if self.keys is None or not compiled.writes:
            parameters = compiled.parameters(given)
        else:
            with sealing(Sealing(self.tenant, self._run_of(statement, given), self.keys)):
                parameters = compiled.parameters(given)
        compiled.tell_listeners(self._connection)
        self._waiting.append(_Sent(compiled.sql, parameters))

    def insert_row(self, table: Table, /, **values: Any) -> None:
        """Insert a row of this tenant."""
        self.execute(insert_row(table, **values))

    def insert_new(self, table: Table, *rows: Mapping[str, Any]) -> int:
        """Insert this tenant's rows that are not there yet, and return how many those are."""
        dialect = sqlite if self.dialect == "sqlite" else postgresql
        values = [{"tenant_id": OF_TENANT, **row} for row in rows]
        inserting = dialect.insert(table).values(values).on_conflict_do_nothing()
        inserting = inserting.execution_options(of_run=rows[0].get("run_id"))
        # Of an INSERT the count is forgotten unless it is asked for.
        return self.execute(inserting.execution_options(preserve_rowcount=True))

    def watch(self, run_id: str) -> None:
        """Have ``heads`` tell this run's head at the end, even if it gets no event."""
        self._watched.add(run_id)

    def _chain(self, run_id: str) -> ChainHead:
        row = self.one(_CHAIN, of_run=run_id)
        if row is None:
            raise RunNotFound(run_id)
        return ChainHead(seq=row["seq"], hash=row["head"])

    def write_events(self) -> None:
        """Chain the pending events; runs in order of run_id, so that writers never deadlock."""
        for run_id in sorted(self.pending.keys() | self._watched):
            if self.pending.get(run_id):
                self._write_chain(run_id)
            elif run_id in self._watched:
                self.heads[run_id] = self._chain(run_id)

    def commit_sent(self) -> None:
        """Run what waits to be run together with the COMMIT: the driver's own does nothing then."""
        if self._waiting:
            self._waiting.append(_Sent("COMMIT"))
            self._run_waiting()

    def _write_chain(self, run_id: str) -> None:
        head = self._locked.get(run_id)
        guess = self.last_seen.get(run_id) if head is None else None
        # Reads, compares and locks in one statement; where it fails, somebody else was faster.
        if guess is not None and self._move(run_id, guess):
            return
        if not self._move(run_id, head or self._chain(run_id)):
            raise AssertionError(f"the chain of {run_id} has moved while its row was locked")

    def _move(self, run_id: str, start: ChainHead) -> bool:
        """Write a run's pending events behind ``start``; ``False``: that is not its head."""
        seq, head = start.seq, start.hash
        values: dict[str, Any] = {}
        for n, item in enumerate(self.pending[run_id]):
            seq = item.seq = seq + 1
            event = {
                "run_id": run_id,
                "seq": seq,
                "type": item.type,
                "step_id": item.step_id,
                "body": item.body,
                "at_ms": self.now_ms,
            }
            previous, head = head, event_hash(head, event)
            event |= {"previous": previous, "hash": head}
            values |= {f"{name}_{n}": event[name] for name in _EVENT}
        moved = self.execute(
            _MOVE,
            of_run=run_id,
            from_seq=start.seq,
            from_head=start.hash,
            to_seq=seq,
            to_head=head,
        )
        if not moved:
            return False
        self.send(insert_rows(events, _EVENT, len(self.pending[run_id])), **values)
        self.heads[run_id] = ChainHead(seq=seq, hash=head)
        return True

    def tell_events(self, observer: Observer | None) -> None:
        """Say what has been committed: in the log, under the events' own names, and elsewhere."""
        import structlog  # loads Rich's tracebacks, which no verb that reads needs

        log = structlog.get_logger()
        for run_id, waiting in self.pending.items():
            for item in waiting:
                where = {"run_id": run_id, "step_id": item.step_id, "seq": item.seq}
                log.info(item.type, **{**item.said, **where})
                if observer is not None:
                    observer.event(item.type, item.said)
