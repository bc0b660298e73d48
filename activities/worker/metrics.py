"""Metrics: what the ledger and the attempts do, through the Temporal SDK's own endpoint.

Most of it is read off the events that transactions have committed, so that counters and ledger
agree. Labels are of few values: tool, class, outcome; never a run, a key or a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio.common import MetricCounter, MetricGauge, MetricHistogramFloat, MetricMeter

from surehand.activities.ledger.retention.hiding import LastRound

#: Seconds; a claim or an outcome takes 2 ms, and a transaction that hangs is given up after 10 s.
TRANSACTION_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
#: Seconds; a recovery takes a lease at least, one by a human takes minutes or hours.
WAIT_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 900, 3600, 14400, 86400)

#: Histograms and the limits of their buckets; the endpoint adds ``_seconds`` to their names.
BUCKETS: Final[dict[str, tuple[float, ...]]] = {
    "surehand_ledger_transaction": TRANSACTION_BUCKETS,
    "surehand_retry_delay": WAIT_BUCKETS,
    "surehand_recovery": WAIT_BUCKETS,
    "surehand_lease_wait": WAIT_BUCKETS,
}

#: Outcome of an effect, by the event that records it.
_EFFECTS: Final = {
    "effect.claimed": "claimed",
    "effect.committed": "committed",
    "effect.failed": "failed",
    "effect.answered_no": "answered_no",
    "effect.in_doubt": "in_doubt",
    "effect.replayed": "replayed",
    "effect.refused": "refused",
    "effect.late_receipt": "late_receipt",
}


class Metrics:
    """The project's own instruments; without a meter they measure nothing."""

    def __init__(self, meter: MetricMeter = MetricMeter.noop) -> None:
        self._meter = meter
        self._transactions = self._seconds(
            "surehand_ledger_transaction", "Ledger transactions, by outcome"
        )
        self._retry_delays = self._seconds(
            "surehand_retry_delay", "Pause before a failed call is tried again, by failure class"
        )
        self._recoveries = self._seconds(
            "surehand_recovery", "Time an outcome was missing until it was settled, and by whom"
        )
        self._lease_waits = self._seconds(
            "surehand_lease_wait", "Pause of an attempt that found a lease held, by reason"
        )
        self._effects = self._count("surehand_effects", "Effects, by what became of them")
        self._failures = self._count(
            "surehand_failures", "Failed calls, by failure class and whether they are tried again"
        )
        self._reconciliations = self._count(
            "surehand_reconciliations", "Ways in which outcomes in doubt were settled, by rule"
        )
        self._compensations = self._count("surehand_compensations", "Undone effects, by outcome")
        self._interventions = self._count(
            "surehand_interventions", "Questions put to a human, opened and settled"
        )
        self._broken = self._count(
            "surehand_broken_invariants", "What did not hold at the end of a recovery: never any"
        )
        self._resources = self._count(
            "surehand_resources", "Resources: acquired, waited, refused, released, freed"
        )
        self._stale = self._count(
            "surehand_stale_entries", "Stale entries that were looked at, by outcome"
        )
        self._over_quota = self._count(
            "surehand_quota_refusals", "Steps and runs that a tenant's quota holds up, or refuses"
        )
        self._notified = self._count(
            "surehand_notifications", "Notifications, by notifier and what became of them"
        )

        self._epoch = self._gauge(
            "surehand_ledger_epoch", "Number of the epoch that is open after a restore; 0: none is"
        )
        self._age = self._gauge(
            "surehand_retention_age",
            "Time since a round of retention did all it should, of the tenant longest without one",
            "seconds",
        )
        self._failing = self._gauge(
            "surehand_retention_failing", "Tenants whose newest round of retention failed in part"
        )

    def _seconds(self, name: str, meaning: str) -> MetricHistogramFloat:
        return self._meter.create_histogram_float(name, meaning, "seconds")

    def _count(self, name: str, meaning: str) -> MetricCounter:
        return self._meter.create_counter(name, meaning)

    def _gauge(self, name: str, meaning: str, unit: str | None = None) -> MetricGauge:
        return self._meter.create_gauge(name, meaning, unit)

    def transaction(self, outcome: str, seconds: float) -> None:
        """Measure a transaction: ``committed``, ``rolled_back`` or ``unavailable``."""
        self._transactions.record(seconds, {"outcome": outcome})

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        """Count what a committed event tells."""
        tool = {"tool": str(body.get("tool", ""))}
        if type_ in _EFFECTS:
            self._effects.add(1, {**tool, "outcome": _EFFECTS[type_]})
        match type_:
            case "step.failed" if body.get("failure_class") == "cancelled":
                pass  # A turn that nobody waited for has not failed.
            case "effect.failed" | "step.failed" if "failure_class" in body:
                self._failed(tool, body)
            case "effect.reconciled":
                labels = {"rule": str(body["rule"]), "action": body["action"]}
                self._reconciliations.add(1, {**tool, **labels})
            case "effect.committed" if "rule" in body:
                labels = {"rule": str(body["rule"]), "action": "commit"}
                self._reconciliations.add(1, {**tool, **labels})
            case "effect.compensated":
                self._compensations.add(1, {**tool, "outcome": "compensated"})
            case "effect.uncompensated":
                self._compensations.add(1, {**tool, "outcome": "uncompensated"})
            case "intervention.opened":
                self._interventions.add(1, {**tool, "rule": body["rule"], "outcome": "opened"})
                if body["rule"] == "compensation_failed":
                    self._compensations.add(1, {**tool, "outcome": "failed"})
            case "intervention.settled":
                labels = {"rule": body["rule"], "outcome": body["outcome"]}
                self._interventions.add(1, {**tool, **labels})
            case "resource.acquired" if "waited_ms" in body:
                self._count_resource(tool, type_)
                self._lease_waits.record(body["waited_ms"] / 1000, {**tool, "reason": "resource"})
            case _ if type_.startswith("resource."):
                self._count_resource(tool, type_)
            case "quota.exceeded":
                self.over_quota(body["quota"], body["over"])
            case "recovery.verified":
                by = "human" if body["action"] == "human" else "worker"
                self._recoveries.record(body["took_ms"] / 1000, {**tool, "by": by})
                for name in body.get("broken", []):
                    self._broken.add(1, {**tool, "invariant": name})

    def _count_resource(self, tool: dict[str, str], type_: str) -> None:
        self._resources.add(1, {**tool, "outcome": type_.removeprefix("resource.")})

    def _failed(self, tool: dict[str, str], body: Mapping[str, Any]) -> None:
        class_ = {**tool, "failure_class": body["failure_class"]}
        retry_ms = body.get("retry_ms")
        self._failures.add(1, {**class_, "again": "no" if retry_ms is None else "yes"})
        if retry_ms is not None:
            self._retry_delays.record(retry_ms / 1000, class_)

    def lease_wait(self, tool: str, reason: str, wait: timedelta) -> None:
        """Measure a pause: ``held`` by another attempt, or ``settling`` after a lost call."""
        self._lease_waits.record(wait.total_seconds(), {"tool": tool, "reason": reason})

    def over_quota(self, quota: str, over: str) -> None:
        """Count what a quota holds up (``queue``) or refuses (``reject``)."""
        self._over_quota.add(1, {"quota": quota, "over": over})

    def notified(self, notifier: str, outcome: str, number: int = 1) -> None:
        """Count attempts to tell people: ``sent``, ``failed``, ``given_up``, ``dropped``, ..."""
        self._notified.add(number, {"notifier": notifier, "outcome": outcome})

    def stale(self, tool: str, outcome: str) -> None:
        """Count a stale entry that was looked at, as ``Reconciled`` names its outcome."""
        self._stale.add(1, {"tool": tool, "outcome": outcome})

    def epoch(self, number: int) -> None:
        """Say which epoch is open; 0: none is."""
        self._epoch.set(number)

    def retention(self, rounds: Sequence[LastRound]) -> None:
        """Say how the tenants' last rounds of retention were; nothing, where there were none."""
        if not rounds:
            return
        self._failing.set(sum(one.failed for one in rounds))
        ages = [one.age for one in rounds if one.age is not None]
        if ages:
            self._age.set(max(ages) // timedelta(seconds=1))
