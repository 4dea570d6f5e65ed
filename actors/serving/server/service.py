"""`PolicyService`: the logic of the service without gRPC: sessions, idempotent steps, export and import."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from actors.policy.state import PolicyState
from actors.serving.messages import parse_step, request_digest
from actors.serving.options import ServeOptions
from actors.serving.server.batcher import Batcher, BatchResult
from actors.serving.server.credentials import TokenFile
from actors.serving.server.metrics import ServingMetrics
from actors.serving.server.models import ModelVersions, ServedModel
from actors.serving.server.sessions import PendingStep, Session, SessionTable, Waiter
from actors.serving.server.training import EpisodeCollector, TrainingEpisode
from actors.sessions.plain import NO_MASK
from actors.sessions.refusal import Reason, Refusal
from actors.sessions.session_state import seal, unseal
from actors.types.actions import continuous_values
from actors.wire import policy_pb2

_MAX_RESPONSE_BYTES = 1024  # of a StepResponse without exported state


class PolicyService:
    """The requests of PolicyService. Not thread-safe: call it from the server's event loop only.

    `owner` is the hash of the token of the request, or "" if tokens are not used. Only its own sessions exist for it.
    """

    def __init__(
        self,
        models: ModelVersions,
        options: ServeOptions,
        key: bytes,
        metrics: ServingMetrics,
        tokens: TokenFile | None = None,
        collector: EpisodeCollector | None = None,
    ) -> None:
        self.models, self.options, self.metrics = models, options, metrics
        self.draining = False
        self.collector = collector
        self._key = key
        states = PolicyState.zeros(models.state_sizes, options.max_sessions, models.newest.device)
        self.sessions = SessionTable(
            states, options.session_ttl_s, time.monotonic, self._on_close,
            lambda: None if tokens is None else tokens.share(options.max_sessions),
        )  # fmt: skip
        self.batcher = Batcher(states, lambda: models.newest, self._finish, metrics.observe_batch)
        metrics.sessions.set_function(lambda: len(self.sessions))
        metrics.policy_version.set_function(lambda: models.newest.version)
        metrics.versions_held.set_function(lambda: len(models.held))

    def expire(self) -> int:
        """Close expired sessions, and return their number. Also end training sessions whose token lost the scope."""
        count = self.sessions.expire()
        for session in self.sessions:
            episode = session.training
            if episode is not None and session.pending is None and episode.collector.lost_scope(session.owner):
                episode.abandon(drop=True)
                self.sessions.close(session)
        self.metrics.expired.inc(count)
        for account in () if self.collector is None else self.collector.sink.accounts():
            self.metrics.count(account)
        return count

    def adopt(self, model: ServedModel) -> None:
        """Serve `model` as the newest version. Beyond `max_versions`, the oldest is released: its sessions move."""
        self.models.adopt(model)
        surplus = self.models.held[: -self.options.max_versions]
        for session in self.sessions if surplus else ():
            if session.pinned in surplus:
                self._move(session)
        self.metrics.swaps.inc()

    async def open_session(
        self, request: policy_pb2.OpenSessionRequest, owner: str = ""
    ) -> policy_pb2.OpenSessionResponse:
        """Open or import a session, which counts against the limit of `owner`. Raises `Refusal`."""
        if self.draining:
            raise Refusal(Reason.DRAINING, "this server is shutting down: open the session at another server")
        if request.train:
            if self.collector is None:
                learns_from_none = "this server learns from no session: start one with tamiyo train --env external"
                raise Refusal(Reason.NOT_TRAINING, learns_from_none)
            self.collector.require_open(request, owner, self.models.spaces)
        layout = self.models.layout(request.spaces_hash)
        model = self.models.newest
        if not model.ready(layout.spaces):
            await asyncio.to_thread(model.program, layout.spaces)
        evicted = self.sessions.evicted
        if request.exported_state:
            session = self._import_session(request, owner)
        else:
            session = self.sessions.open(layout, request.seed, request.latest and not request.train, owner=owner)
            self._begin(session, self.collector if request.train else None)
        self.metrics.opened.inc()
        self.metrics.evicted.inc(self.sessions.evicted - evicted)
        return policy_pb2.OpenSessionResponse(
            session_id=session.id,
            next_step_index=session.next_index,
            policy_version=self._model(session).version,
            session_ttl_s=self.options.session_ttl_s,
        )

    def _begin(self, session: Session, collector: EpisodeCollector | None) -> None:
        """Pin a new session, and begin its episode if `collector` learns from it."""
        if collector is not None:
            session.training = TrainingEpisode(session.seed, session.layout.spaces.hash, collector, session.owner)
        self._pin(session)

    def _pin(self, session: Session, model: ServedModel | None = None) -> None:
        """Have a session keep a version, by default the newest, unless it is `latest`."""
        if not session.latest:
            session.pinned = model or self.models.newest
            session.pinned.sessions += 1

    def _unpin(self, session: Session) -> None:
        """Undo `_pin`: the session takes the version that is the newest at its next step."""
        if session.pinned is not None:
            session.pinned.sessions -= 1
            session.pinned = None
            self.models.release_unused()

    def _move(self, session: Session) -> None:
        self._unpin(session)
        self.metrics.moved.inc()

    def _import_session(self, request: policy_pb2.OpenSessionRequest, owner: str) -> Session:
        """Continue an exported session under a new id. A server that had the session before, whose state of it may be
        an older one, then answers no step of what follows."""
        state, policy_state = unseal(request.exported_state, self.models.state_sizes, self._key)
        if state.spaces_hash != request.spaces_hash or state.architecture_hash != self.models.newest.architecture:
            raise Refusal(Reason.STATE_INVALID, "exported_state belongs to other spaces or to another policy")
        if state.owner != owner:
            raise Refusal(Reason.STATE_INVALID, "exported_state is of a session of another token: open a new session")
        layout = self.models.layout(request.spaces_hash)
        session = self.sessions.open(layout, state.seed, state.latest, owner=owner)
        self._pin(session, self.models.find(state.policy_version))
        session.next_index, session.last_request, session.hazard = (
            state.next_step_index, state.last_request, state.hazard
        )  # fmt: skip
        if state.last_response:  # whose id of the session the appended one replaces
            renamed = policy_pb2.StepResponse(session_id=session.id).SerializeToString()
            session.last_response = state.last_response + renamed
        for t, imported in zip(self.sessions.states, policy_state, strict=True):
            t[:, session.row] = imported[:, 0]
        self.metrics.imported.inc()
        return session

    def _session(self, session_id: str, owner: str) -> Session:
        """Return this owner's session. Raises `Refusal`, also if it is a training session whose token may not train."""
        session = self.sessions.get(session_id, owner)
        if session.training is not None:
            session.training.collector.require_scope(owner)
        return session

    def _model(self, session: Session) -> ServedModel:
        """Return the version that a step of this session would use now."""
        return session.pinned or self.models.newest

    def _on_close(self, session: Session) -> None:
        self._unpin(session)
        if session.training is not None:
            session.training.abandon()

    def reset_session(
        self, request: policy_pb2.ResetSessionRequest, owner: str = ""
    ) -> policy_pb2.ResetSessionResponse:
        """Restart a session with zero state and the newest weights. Raises `Refusal`."""
        session = self._session(request.session_id, owner)
        if session.pending is not None:
            raise Refusal(Reason.STEP_CONFLICT, "a step of this session is in progress: reset it after the answer")
        collector = session.training.collector if session.training is not None else None
        if collector is not None:
            collector.require_room()
        self.sessions.close(session)
        fresh = self.sessions.open(session.layout, request.seed, session.latest, session.id, owner)
        self._begin(fresh, collector)
        return policy_pb2.ResetSessionResponse(policy_version=self.models.newest.version)

    def close_session(
        self, request: policy_pb2.CloseSessionRequest, owner: str = ""
    ) -> policy_pb2.CloseSessionResponse:
        """Close a session, after its step in progress. Closing an unknown session has no effect."""
        session = self.sessions.find(request.session_id, owner)
        if session is not None and session.pending is not None:
            session.pending.closing = True
        elif session is not None:
            self.sessions.close(session)
        return policy_pb2.CloseSessionResponse()

    def end_episode(self, request: policy_pb2.EndEpisodeRequest, owner: str = "") -> bytes:
        """End the episode of a training session, or return the stored answer if it has ended in the same way. Returns a
        serialized `EndEpisodeResponse`. Raises `Refusal`."""
        session = self._session(request.session_id, owner)
        episode = session.training
        if episode is None:
            raise Refusal(Reason.NOT_TRAINING, "this session is not learned from: open it with `train`")
        digest = request_digest(request)
        if episode.ended is not None:
            if digest != episode.ended[0]:
                raise Refusal(
                    Reason.STEP_CONFLICT, "the episode has already ended, with other contents: open another session"
                )
            self.metrics.replays.inc()
            return episode.ended[1]
        if session.pending is not None:
            raise Refusal(Reason.STEP_CONFLICT, "a step of this session is in progress: end it after the answer")
        self.sessions.touch(session)
        episode.collector.require_room()
        final, model = episode.check_end(request, session.next_index, session.layout), self._model(session)
        bootstrap = 0.0 if request.terminated else self.batcher.bootstrap_value(session, model, final)
        response = episode.end(request, final, bootstrap, self.models.newest.version)
        episode.ended = digest, response
        return response

    @property
    def max_response_bytes(self) -> int:
        """Estimate of the largest StepResponse with exported state."""
        return 4 * self.models.state_sizes.floats + _MAX_RESPONSE_BYTES

    def start_step(self, request: policy_pb2.StepRequest, waiter: Waiter, owner: str = "") -> None:
        """Start a step, or, if the request repeats one, join the step in progress or answer what is stored.

        `waiter` gets a serialized `StepResponse`, or an exception. Raises `Refusal`.
        """
        session = self._session(request.session_id, owner)
        index, export = request.step_index, request.export_state and session.training is None
        pending = session.pending
        if pending is None and self.draining:
            raise Refusal(
                Reason.DRAINING, "this server is shutting down: continue at another server with the exported state"
            )
        if pending is not None and index == pending.request.step_index:
            if request_digest(request) != request_digest(pending.request):
                raise _conflict(index)
            pending.waiters.append(waiter)
            pending.export |= export
            self.metrics.replays.inc()
            return
        if index == session.next_index - 1 and session.last_response:
            if request_digest(request) != request_digest(session.last_request):
                raise _conflict(index)
            self.metrics.replays.inc()
            self.sessions.touch(session)
            waiter.set_result(self._response_bytes(session, export and pending is None))
            return
        if index != session.next_index:
            raise Refusal(
                Reason.STEP_GAP,
                f"step {index} is out of order: send step {session.next_index} after the answer to the step before, or "
                "repeat the last step, whose answer is stored",
                next_step_index=session.next_index,
            )
        if session.training is None and self._model(session).masked and not request.HasField("mask"):
            raise Refusal(Reason.ILLEGAL_MASK, NO_MASK)
        query = parse_step(request, session.layout)
        reward = request.reward if request.HasField("reward") else None
        episode = session.training
        if episode is not None:
            self.sessions.touch(session)  # also if it has to wait for the queue
            episode.check_step(index, reward, query, request)
            if episode.segment_full:
                self._unpin(session)
            elif episode.collector.outdated(self._model(session), self.models.newest):
                self._move(session)
        elif reward is not None:
            raise Refusal(Reason.NOT_TRAINING, "this session takes no rewards: open it with `train`")
        if session.pinned is None:
            self._pin(session)
        session.pending = PendingStep(session, query, request, export, [waiter], reward)
        self.sessions.touch(session)
        self.batcher.submit(session.pending)

    def _finish(self, step: PendingStep, outcome: BatchResult | Exception, row: int) -> None:
        """Handle the outcome of one step: store the answer, advance the session, and answer the waiting calls."""
        session = step.session
        if session.pending is not step:  # it has ended, before an error in another step of its batch
            return
        if isinstance(outcome, Exception):
            for waiter in step.waiters:
                if not waiter.cancelled():
                    waiter.set_exception(outcome)
        else:
            self._answer(session, step, outcome, row)
        session.pending = None  # only now: after an error above, the batcher calls this again, with the error
        if step.closing:
            self.sessions.close(session)

    def _answer(self, session: Session, step: PendingStep, outcome: BatchResult, row: int) -> None:
        response = policy_pb2.StepResponse(
            session_id=session.id,
            step_index=step.request.step_index,
            action=outcome.actions[row],
            log_probs=outcome.log_probs[row],
            value=outcome.values[row],
            policy_version=outcome.model.version,
        )
        if session.layout.spaces.action.num_continuous:
            response.continuous.extend(
                continuous_values(session.layout.spaces.action, np.array(outcome.actions[row])).tolist()
            )
        session.last_response, session.last_request = response.SerializeToString(), step.request
        session.next_index += 1
        if session.training is not None and outcome.record is not None:
            session.training.record(outcome.record, row, step.reward)
        self.metrics.steps.inc()
        result = self._response_bytes(session, step.export)
        while step.waiters:
            if not (waiter := step.waiters.pop()).cancelled():
                waiter.set_result(result)

    def _response_bytes(self, session: Session, export: bool) -> bytes:
        """Return the last response, with the exported state if `export`."""
        if not export:
            return session.last_response
        state = policy_pb2.SessionState(
            session_id=session.id,
            spaces_hash=session.layout.spaces.hash,
            architecture_hash=self.models.newest.architecture,
            next_step_index=session.next_index,
            seed=session.seed,
            latest=session.latest,
            policy_version=self._model(session).version,
            last_request=request_digest(session.last_request),
            last_response=session.last_response,
            hazard=session.hazard,
            owner=session.owner,
        )
        sealed = seal(state, self.sessions.states, session.row, self._key)
        # Concatenating serialized messages merges them, so the field can be appended to the stored response.
        return session.last_response + policy_pb2.StepResponse(exported_state=sealed).SerializeToString()


def _conflict(index: int) -> Refusal:
    return Refusal(
        Reason.STEP_CONFLICT, f"step {index} was already decided for a request with other contents: send the next step"
    )
