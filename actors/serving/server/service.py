"""What the service does with each request, apart from gRPC: sessions, exactly-once steps, exports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import structlog

from actors.serving.messages import digest, parse_step
from actors.serving.options import ServeOptions
from actors.serving.refusal import Reason, Refusal
from actors.serving.server.batcher import Batcher, Decided, Entry
from actors.serving.server.models import Models, ServedModel
from actors.serving.server.sessions import Pending, Rows, Session, Sessions
from actors.serving.server.telemetry import Telemetry
from actors.serving.session_state import seal, unseal
from actors.wire import policy_pb2

_ANSWER_BYTES = 1024  # of an answer without its state, at most
_MAX_ID = 64  # characters of a session id
_MAX_AHEAD = 16  # steps that a client may send before the first of them is answered; each waits its turn


class PolicyService:
    """All in one event loop: nothing here is safe to call from other threads."""

    def __init__(self, models: Models, options: ServeOptions, key: bytes, telemetry: Telemetry) -> None:
        self.models, self.options, self.telemetry = models, options, telemetry
        self.draining = False
        self._key, self._log = key, structlog.get_logger("tamiyo.serving")
        rows = Rows(models.state_sizes, options.max_sessions, models.device)
        self.sessions = Sessions(
            rows, options.session_ttl_s, options.first_step_ttl_s, time.monotonic, models.release,
            share=options.sessions_per_token, evict_after_s=options.evict_after_s,
        )  # fmt: skip
        self.batcher = Batcher(
            rows, lambda: models.newest, self._finish, telemetry.batch, options.max_batch, options.max_wait_ms / 1000
        )
        self.show()

    def show(self) -> None:
        """Put what changes slowly into the metrics."""
        self.telemetry.sessions.set(len(self.sessions))
        self.telemetry.policy_version.set(self.models.newest.version)
        self.telemetry.versions_held.set(len(self.models.held))

    def expire(self) -> int:
        count = self.sessions.expire()
        self.telemetry.expired.inc(count)
        self.show()
        return count

    def adopt(self, model: ServedModel) -> None:
        self.models.adopt(model)
        self.telemetry.swaps.inc()
        self.show()

    def get_model(self) -> policy_pb2.GetModelResponse:
        models = self.models
        response = policy_pb2.GetModelResponse(
            policy_version=models.newest.version,
            generation=models.newest.generation,
            held_versions=sorted(models.held),
            spaces_json=models.spaces.to_json(),
            session_ttl_s=self.options.session_ttl_s,
            first_step_ttl_s=self.options.first_step_ttl_s,
            max_message_bytes=self.options.max_message_bytes,
            server=f"tamiyo {_version()}",
        )
        for spaces_hash, layout in models.layouts.items():
            spaces = layout.spaces
            response.accepted.add(slots=spaces.slots, spaces_hash=spaces_hash, obs_size=spaces.obs_size)
        for head in models.spaces.action.heads:
            response.heads.add(name=head.name, choices=head.choices)
        return response

    async def open_session(
        self, request: policy_pb2.OpenSessionRequest, owner: str = ""
    ) -> policy_pb2.OpenSessionResponse:
        """`owner` is whose share of the sessions it counts against. Raises `Refusal`."""
        if self.draining:
            raise Refusal(Reason.DRAINING, "this server is shutting down: open the session elsewhere")
        layout = self.models.layout(request.spaces_hash)
        model = self.models.newest
        if not model.ready(layout.spaces):
            await asyncio.to_thread(model.prepare, layout.spaces)
        evicted = self.sessions.evicted
        if request.exported_state:
            session = self._import(request, owner)
        else:
            pinned = None if request.latest else self.models.newest
            session = self.sessions.open(layout, request.seed, pinned, owner=owner)
            if pinned is not None:
                self.models.hold(pinned)
        self.telemetry.opened.inc()
        self.telemetry.evicted.inc(self.sessions.evicted - evicted)
        self.telemetry.sessions.set(len(self.sessions))
        return policy_pb2.OpenSessionResponse(
            session_id=session.id,
            next_step_index=session.next_index,
            policy_version=(session.pinned or self.models.newest).version,
            session_ttl_s=self.options.session_ttl_s,
            first_step_ttl_s=self.options.first_step_ttl_s,
        )

    def _import(self, request: policy_pb2.OpenSessionRequest, owner: str) -> Session:
        """Go on with an exported session; one that is still here is kept as it is, so that this is safe to repeat."""
        state, memory = unseal(request.exported_state, self.models.state_sizes, self._key)
        if state.spaces_hash != request.spaces_hash or state.architecture_hash != self.models.architecture:
            raise Refusal(Reason.STATE_INVALID, "exported_state is of other spaces or of another policy")
        here = self.sessions.find(state.session_id)
        if here is not None and here.next_index >= state.next_step_index:
            return here
        if here is not None and here.pending is not None:
            raise _conflict(here.next_index)
        pinned = None if state.latest else self.models.held.get(state.policy_version)
        if pinned is None and not state.latest:
            if not request.other_version:
                raise Refusal(
                    Reason.VERSION_GONE,
                    f"weights {state.policy_version} are not here any more; set other_version to go on with "
                    f"{self.models.newest.version}",
                    newest=self.models.newest.version,
                )
            pinned = self.models.newest
        if here is not None:
            owner = here.owner  # whose room it takes already
            self.sessions.close(here)
        layout = self.models.layout(request.spaces_hash)
        session = self.sessions.open(layout, state.seed, pinned, state.session_id, owner)
        if pinned is not None:
            self.models.hold(pinned)
        session.next_index, session.digest, session.answer = (
            state.next_step_index, state.last_request, state.last_response
        )  # fmt: skip
        self.sessions.rows.write(session.row, memory)
        self.telemetry.imported.inc()
        return session

    def reset_session(self, request: policy_pb2.ResetSessionRequest) -> policy_pb2.ResetSessionResponse:
        session = self.sessions.get(request.session_id)
        if session.pending is not None:
            raise Refusal(Reason.STEP_CONFLICT, "a step of this session is still being computed")
        pinned = None if session.pinned is None else self.models.hold(self.models.newest)
        self.sessions.close(session)
        self.sessions.open(session.layout, request.seed, pinned, session.id, session.owner)
        return policy_pb2.ResetSessionResponse(policy_version=self.models.newest.version)

    def close_session(self, request: policy_pb2.CloseSessionRequest) -> policy_pb2.CloseSessionResponse:
        """Closing twice is no error; a step under way is finished first."""
        session = self.sessions.find(request.session_id)
        if session is not None and session.pending is not None:
            self._afterwards(session.pending, lambda: self.close_session(request))
        elif session is not None:
            self.sessions.close(session)
            self.telemetry.sessions.set(len(self.sessions))
        return policy_pb2.CloseSessionResponse()

    @property
    def answer_bytes(self) -> int:
        """About the size of a step's answer that carries the session's state."""
        return self.sessions.rows.bytes_per_row + _ANSWER_BYTES

    def begin(self, request: policy_pb2.StepRequest) -> asyncio.Future[bytes]:
        """Start a step, join it, or find its answer: the serialised `StepResponse`. Raises `Refusal`."""
        if len(request.session_id) > _MAX_ID:
            raise Refusal(Reason.MALFORMED, "that is no session id")
        session = self.sessions.get(request.session_id)
        index, asked = request.step_index, digest(request)
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        pending = session.pending
        if pending is None and self.draining:
            raise Refusal(Reason.DRAINING, "this server is shutting down: go on elsewhere with the exported state")
        if pending is not None and index == pending.step_index:
            if asked != pending.digest:
                raise _conflict(index)
            pending.waiters.append(waiter)
            pending.export |= request.export_state
            self.telemetry.replays.inc()
            return waiter
        if pending is not None and 0 < index - pending.step_index <= _MAX_AHEAD:
            return self._after(pending, request, waiter)
        if index == session.next_index - 1 and session.answer:
            if asked != session.digest:
                raise _conflict(index)
            self.telemetry.replays.inc()
            self.sessions.touch(session)
            waiter.set_result(self._response(session, request.export_state and pending is None))
            return waiter
        if index != session.next_index:
            raise Refusal(
                Reason.STEP_GAP,
                f"step {index} does not follow: the next one is {session.next_index}, and only the last one's answer "
                "is kept",
                next_step_index=session.next_index,
            )
        query = parse_step(request, session.layout)
        session.pending = Pending(index, asked, request.export_state, [waiter])
        self.sessions.touch(session)
        self.batcher.submit(Entry(session, query, session.pending))
        return waiter

    def _after(
        self, pending: Pending, request: policy_pb2.StepRequest, waiter: asyncio.Future[bytes]
    ) -> asyncio.Future[bytes]:
        """A step that came before the answer to the one before it: begun as soon as that is there."""

        def go_on() -> None:
            if waiter.cancelled():
                return
            try:
                own = self.begin(request)
            except Refusal as refusal:
                waiter.set_exception(refusal)
                return
            own.add_done_callback(lambda done: _pass_on(done, waiter))
            waiter.add_done_callback(lambda done: own.cancel() if done.cancelled() else None)

        self._afterwards(pending, go_on)
        return waiter

    def _afterwards(self, pending: Pending, call: Callable[[], object]) -> None:
        """Once a step under way is over, however it ends."""
        earlier: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        pending.waiters.append(earlier)

        def done(step: asyncio.Future[bytes]) -> None:
            step.exception()  # those who asked for it are told
            call()

        earlier.add_done_callback(done)

    def _finish(self, entry: Entry, outcome: Decided | Exception, row: int) -> None:
        """The batcher's word on one entry: keep the answer, move the session on, tell all who wait."""
        session, pending = entry.session, entry.pending
        if session.pending is not pending:
            return
        session.pending = None
        if isinstance(outcome, Exception):
            for waiter in pending.waiters:
                if not waiter.done():
                    waiter.set_exception(outcome)
            return
        answer = policy_pb2.StepResponse(
            session_id=session.id,
            step_index=pending.step_index,
            action=outcome.actions[row],
            log_probs=outcome.log_probs[row],
            value=outcome.values[row],
            policy_version=outcome.model.version,
        )
        session.answer, session.digest = answer.SerializeToString(), pending.digest
        session.next_index = pending.step_index + 1
        self.telemetry.steps.inc()
        result = self._response(session, pending.export)
        for waiter in pending.waiters:
            if not waiter.done():
                waiter.set_result(result)

    def _response(self, session: Session, export: bool) -> bytes:
        if not export:
            return session.answer
        state = policy_pb2.SessionState(
            session_id=session.id,
            spaces_hash=session.layout.spaces.hash,
            architecture_hash=self.models.architecture,
            next_step_index=session.next_index,
            seed=session.seed,
            latest=session.pinned is None,
            policy_version=(session.pinned or self.models.newest).version,
            last_request=session.digest,
            last_response=session.answer,
        )
        sealed = seal(state, self.sessions.rows.state, session.row, self._key)
        # a message's bytes may be continued: the field is appended to what is kept without it
        return session.answer + policy_pb2.StepResponse(exported_state=sealed).SerializeToString()


def _conflict(index: int) -> Refusal:
    return Refusal(Reason.STEP_CONFLICT, f"step {index} was asked before with other contents: it is decided already")


def _pass_on(done: asyncio.Future[bytes], waiter: asyncio.Future[bytes]) -> None:
    if waiter.done() or done.cancelled():
        return
    error = done.exception()
    if error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(done.result())


def _version() -> str:
    try:
        return version("tamiyo")
    except PackageNotFoundError:
        return "(not installed)"
