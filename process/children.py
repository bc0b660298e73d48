"""Child processes that write to a file and never outlive the program that started them.

Some begin as copies of a process that has loaded everything: drills start hundreds. A worker loads
1,200 modules before it does anything, which takes seconds of a core. A fork server loads them once.
Each process is forked from it, with its own session, environment, folder and output, and is killed,
frozen and waited for like any other.

``multiprocessing`` has a fork server, too. Its children load the program's main module again, and
have neither their own environment nor their own output.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from queue import SimpleQueue
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, Final, NoReturn, Self

from surehand.process import ROOT
from surehand.process.exits import ExitCode, NotReachable, SurehandError, leave
from surehand.process.program import CALLED_AS, CHECKOUT

#: Read by Python or the linker before our code runs: a process that differs in them is not forked.
_READ_EARLY: Final = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_")
#: Of these, what a forked process is given all the same.
_GIVEN: Final = ("PYTHONPATH", "PYTHONUNBUFFERED")
#: The copies of one server have the same hash seed. A worker that goes on with another one's run
#: has to find its sets in another order, or nobody sees that it matters.
_IN_TURNS: Final = 2
#: The exit code of a process whose fork server was killed: nobody knows how it ended.
_UNKNOWN: Final = 255


def _read_before_us(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_EARLY) and name not in _GIVEN
    }


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a process with this environment can begin as a copy.

    Only on Linux: macOS ends copies of a process that has used its frameworks.
    """
    path = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    return (
        sys.platform == "linux"
        and _read_before_us(environment) == _read_before_us(os.environ)
        and not any(Path(entry, "sitecustomize.py").exists() for entry in path)
    )


_SERVERS: Final[dict[tuple[str, ...], Iterator[ForkServer]]] = {}


@dataclass(frozen=True)
class Forked:
    """A forked process; what :class:`surehand.process.children.Child` needs of a ``Popen``."""

    pid: int
    command: Sequence[str]
    ended: Future[int] = field(default_factory=Future)
    """How it ended (``-9``: SIGKILL)."""

    def poll(self) -> int | None:
        """Return how it ended, or ``None`` while it runs."""
        return self.ended.result() if self.ended.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return how; at most so many seconds."""
        try:
            return self.ended.result(timeout)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(self.command, timeout or 0) from error

    def send_signal(self, number: int) -> None:
        """Send it a signal; no-op when it has ended."""
        if not self.ended.done():
            # It may have ended, and nobody has told this process yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """A process that has loaded modules, and forks processes which run the ``main`` of one."""

    def __init__(self, *modules: str) -> None:
        """Start it; it ends when this process does. A command that names none is the first's."""
        self.modules = modules
        self._asking = threading.Lock()
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, *modules],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._answers = SimpleQueue[Forked | None]()
        self._listener = threading.Thread(target=self._listen, name="fork server", daemon=True)
        self._listener.start()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], **paths: Path
    ) -> Forked:
        """Fork a process; the paths are its folder, its log, and where its errors go."""
        places = {name: str(path.absolute()) for name, path in paths.items()}
        asked = {"arguments": list(arguments), "environment": dict(environment), **places}
        paths["log"].touch()  # whoever waits for what it prints may look before it runs
        assert self._server.stdin is not None
        # One at a time: an answer names no question.
        with self._asking:
            # Of one that has ended the listener says so.
            with suppress(BrokenPipeError, ValueError):
                self._server.stdin.write(json.dumps(asked).encode() + b"\n")
                self._server.stdin.flush()
            started = self._answers.get()
            if started is None:
                self._answers.put(None)  # whoever asks next is told the same
                raise ChildProcessError(f"the fork server of {self.modules[0]} has ended")
            return started

    def _listen(self) -> None:
        assert self._server.stdout is not None
        running = dict[int, Forked]()
        for line in self._server.stdout:
            pid, code = json.loads(line)
            if code is None:
                running[pid] = Forked(pid, self.modules)
                self._answers.put(running[pid])
            else:
                running.pop(pid).ended.set_result(code)
        self._server.wait()
        self._server.stdout.close()
        for one in running.values():
            one.ended.set_result(_UNKNOWN)
        self._answers.put(None)

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.kill()
        self._server.wait()
        with suppress(BrokenPipeError):
            self._server.stdin.close()
        self._listener.join()


def fork_server(*modules: str) -> ForkServer:
    """Return one of this process's fork servers of these modules; they take turns."""
    if modules not in _SERVERS:
        _SERVERS[modules] = cycle([ForkServer(*modules) for _ in range(_IN_TURNS)])
    return next(_SERVERS[modules])


def serve_forks(modules: Sequence[str]) -> NoReturn:
    """Load modules and fork until nobody can ask any more."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what is printed while it loads is no answer
    gc.disable()
    for module in modules:
        with suppress(Exception):  # whoever needs it loads it again, and says what is wrong
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the copies share what is not touched
    gc.enable()

    def tell_parent(pid: int, code: int | None) -> None:
        answers.write(json.dumps([pid, code]).encode() + b"\n")

    def tell_ends(*_: object) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                tell_parent(found[0], os.waitstatus_to_exitcode(found[1]))

    signal.signal(signal.SIGCHLD, tell_ends)
    for line in sys.stdin.buffer:
        # Nobody is told of an end before the beginning.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            answers.close()
            _become_process(json.loads(line), modules)
        tell_parent(pid, None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os._exit(0)


def _become_process(asked: Mapping[str, Any], modules: Sequence[str]) -> NoReturn:
    """Go on as the process that was asked for; nothing of the server is left in it."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDONLY)
        appending = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        log, errors = (os.open(asked[name], appending, 0o666) for name in ("log", "errors"))
        for opened, fd in ((nothing, 0), (log, 1), (errors, 2)):
            os.dup2(opened, fd)
            os.close(opened)
        sys.stdin = os.fdopen(0, closefd=False)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
        os.chdir(asked["folder"])
        before = set(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        others = [entry for entry in sys.path[1:] if entry not in before]
        os.environ.clear()
        os.environ.update(asked["environment"])
        own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [asked["folder"], *filter(None, own), str(ROOT), *others]
        sys.argv = asked["arguments"]
        module = sys.argv[0] if sys.argv[0] in modules else modules[0]
        code = importlib.import_module(module).main(sys.argv[1:])
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    leave(code)


if __name__ == "__main__":
    serve_forks(sys.argv[1:])


_GUARD: Final = 'read -r word || kill -s "$1" "$2"'
#: Seconds that a child may take to end in good order after SIGTERM.
STOP_S: Final = 10.0
#: Seconds until a child has to be ready; it takes two, and several on a loaded machine.
READY_S: Final = 120.0
_POLL_S: Final = 0.02
#: With these exit codes of a child we end, too.
_THEIRS: Final = {code.value: code for code in (ExitCode.WRONG_USE, ExitCode.NOT_REACHABLE)}


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with these settings instead of the user's."""
    ours = ("SUREHAND_", "TEMPORAL_", "SHOP_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    # What is on this machine is reached without a proxy.
    others = {"TEMPORAL_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1,localhost"}
    return {**kept, **others, **settings}


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as this program's own Python does."""
    return [sys.executable, "-m", module, *arguments]


def settings_of_module() -> dict[str, str]:
    """Return what a child needs in its environment to find our modules as this process has."""
    # In the user's folder; a checkout is on no path there.
    path = [*([str(ROOT)] if CHECKOUT else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    called = os.environ.get(CALLED_AS) or sys.argv[0]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", CALLED_AS: called}


class Guard:
    """Ends a child process when this process is gone, however that ended.

    A shell waits on a pipe whose only write end is held here: the pipe closes when this process
    ends, by SIGKILL too. (Linux's PR_SET_PDEATHSIG would not do: it fires when the *thread*
    that started the child ends.)
    """

    def __init__(self, pid: int, signal_name: str = "KILL") -> None:
        """Start to watch over the child ``pid``."""
        # Its own session, so that no signal to a whole group takes the guard away first.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", signal_name, str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """The child has ended and its pid may soon be somebody else's; no-op the second time."""
        if self._shell.poll() is None:
            self._shell.communicate(b"done\n")


class Child:
    """One child process; leaving its ``with`` block stops it by its pid."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str],
        log: Path | None,
        folder: Path | None = None,
        errors: Path | None = None,
        guard: str = "KILL",
        server: ForkServer | None = None,
        **more: Any,
    ) -> None:
        """Start the process.

        Its output is appended to the log (``None``: it goes where ours goes), where it also runs if
        no folder is named. ``guard`` is the signal that ends it should this process be gone.
        ``server`` forks it, if it can: the command has Python run the server's module.
        """
        self.log = log or Path(os.devnull)
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        where = folder or (log and log.parent)
        self._process: subprocess.Popen[bytes] | Forked
        if server is not None and log is not None and where is not None and can_fork(environment):
            # Behind Python comes a file, or `-m` and a module.
            called = [os.fspath(one) for one in command[2 if command[1] == "-m" else 1 :]]
            self._process = server.start(
                called, environment, folder=where, log=log, errors=errors or log
            )
        else:
            with ExitStack() as opened:
                out = None if log is None else opened.enter_context(log.open("ab"))
                err = out if errors is None else opened.enter_context(errors.open("ab"))
                # In its own session: Ctrl-C reaches us only, we stop the children in order.
                self._process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    cwd=where,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    **more,
                )
        self._guard = Guard(self._process.pid, guard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return how it ended (``-9``: SIGKILL), or ``None`` while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        return self.returncode is None

    def output(self) -> str:
        """Return what it has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode(errors="replace")

    def last_line(self) -> str:
        return (self.output().strip().splitlines() or ["it said nothing"])[-1]

    def wait_for(self, ready: Callable[[], Any]) -> Any:
        """Wait until ``ready`` returns something, and return that."""
        deadline = time.monotonic() + READY_S
        while True:
            code = self.returncode  # before the look, which then sees all that it has said
            if found := ready():
                return found
            if code is not None:
                told = f"{self.log.stem} ended with {code}: {self.last_line()}"
                raise SurehandError(told, code=_THEIRS.get(code))
            if time.monotonic() > deadline:
                raise NotReachable(f"{self.log.stem} was not ready within {READY_S:.0f} s")
            time.sleep(_POLL_S)

    def wait_said(self, words: str) -> None:
        self.wait_for(lambda: words in self.output())

    def wait_done(self) -> str:
        """Wait until it has ended well, and return its last line."""
        self.wait_for(lambda: self.returncode == 0)
        return self.last_line()

    def wait(self, within: float | None = None) -> int:
        """Wait until it has ended by itself and return how; at most so many seconds."""
        code = self._process.wait(within)
        self._guard.dismiss()
        return code

    def signal(self, number: Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it and its group as a power cut would (SIGKILL); no-op when it has ended."""
        if self.running:
            try:
                os.killpg(self.pid, SIGKILL)
            except ProcessLookupError:  # Forked this moment: it does not have its own group yet.
                self.signal(SIGKILL)
        self.wait()

    def stop(self, how: Signals = SIGTERM, within: float | None = STOP_S) -> int:
        """Have it end, kill it after so many seconds (``None``: never), and return how it ended."""
        self.signal(how)
        try:
            return self.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()
