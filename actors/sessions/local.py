"""`LocalPolicy` and `LocalRule`: a policy in this process, with the interface and the answers of a served one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from actors.policy.distribution import has_median, median_noise, next_hazard
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, to_weights
from actors.policy.state import PolicyState, StateSizes
from actors.rules.names import RuleFollower, parse_rule, rule_policy
from actors.rules.trial import Trial
from actors.sessions.plain import Mask, as_masks
from actors.sessions.refusal import Code, Reason
from actors.sessions.session import UNKNOWN_VERSION, Answer, Closable, PolicyError, step_noise
from actors.sessions.session_state import seal, unseal
from actors.types.actions import ActionMasks, continuous_values, playable
from actors.types.spaces import Spaces
from actors.wire import policy_pb2

LOCAL_KEY = b"a local session"
"""Not a secret: within one process, the signature only detects states that are damaged or come from a server."""


class LocalPolicy(Closable):
    """Query a policy in this process.

    Args:
        network: The policy, such as `tamiyo.load_policy(PATH).network`. With a slot encoder it also accepts spaces with
            other numbers of slots.
        version: Version to report in answers.
    """

    def __init__(self, network: FactoredRecurrentActorCritic, version: int = UNKNOWN_VERSION) -> None:
        self.version, self._given = version, network
        self._networks = {network.spaces.hash: network}

    def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> LocalSession:
        """Open a session; see `PolicyClient.open`. `latest` has no effect.

        Raises `UserError` if the policy does not fit `spaces`, and `Refusal` if `state` is not the exported state of a
        session of a `LocalPolicy`.
        """
        if spaces.hash not in self._networks:
            weights = to_weights(self._given, self.version, generation=0, state_stride=1)
            self._networks[spaces.hash] = from_weights(weights, self._given.norm.weight.device, spaces)
        return LocalSession(self._networks[spaces.hash], self.version, seed, state)


class LocalRule(Closable):
    """Follow a rule, such as `fixed-column:double@3`, with the interface of `LocalPolicy`.

    Args:
        name: The name of the rule; docs/rules.md lists them. Raises `ConfigError` for a name that is no rule.
    """

    def __init__(self, name: str) -> None:
        self.name, self._rule = name, parse_rule(name)

    def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> LocalSession:
        """Open a session; see `LocalPolicy.open`. Every number of slots fits."""
        return LocalSession(rule_policy(self.name, spaces), 0, seed, state)

    def reads_contributions(self, epoch: int, horizon_epochs: int) -> bool:
        """Return whether the rule may look at the contributions of seeds in this epoch."""
        return not isinstance(self._rule, Trial) or self._rule.reads_contributions(epoch, horizon_epochs)


class LocalSession(Closable):
    """A session of `LocalPolicy` or `LocalRule`; see `PolicySession`."""

    def __init__(
        self, policy: FactoredRecurrentActorCritic | RuleFollower, version: int, seed: int, state: bytes = b""
    ) -> None:
        self.policy_version = version
        self._policy, self._seed, self._next_index = policy, seed, 0
        self._masked = isinstance(policy, FactoredRecurrentActorCritic) and policy.masked
        self._hazard = np.zeros(1)  # see `actors.policy.distribution`
        self._state: PolicyState = policy.initial_state(1)
        if state:
            sizes = StateSizes(*((t.shape[0], t.shape[2]) for t in self._state))
            imported, policy_state = unseal(state, sizes, LOCAL_KEY)
            self._seed, self._next_index = imported.seed, imported.next_step_index
            self._hazard[0] = imported.hazard
            self._state = PolicyState(*(t.to(zero.device) for t, zero in zip(policy_state, self._state, strict=True)))

    @property
    def exported(self) -> bytes:
        session = policy_pb2.SessionState(
            spaces_hash=self._policy.spaces.hash,
            next_step_index=self._next_index,
            seed=self._seed,
            policy_version=self.policy_version,
            hazard=self._hazard[0],
        )
        return seal(session, self._state, 0, LOCAL_KEY) if self._next_index else b""

    def step(
        self, obs: ArrayLike, blueprint_indices: ArrayLike = (), masks: Mask = None, deterministic: bool = True
    ) -> Answer:
        spec = self._policy.spaces.action
        obs, masks = np.asarray(obs, dtype=np.float32), as_masks(spec, masks, self._masked)
        if not np.isfinite(obs).all():
            raise PolicyError(Code.INVALID_ARGUMENT, "obs contains NaN or Inf", Reason.NOT_FINITE)
        if not playable(spec, masks):
            raise PolicyError(Code.INVALID_ARGUMENT, "the masks allow no action", Reason.ILLEGAL_MASK)
        batch = ActionMasks(masks.op[None], None if masks.slot is None else masks.slot[None], masks.rest[None])
        tracked, heads = has_median(self._policy.spaces), len(spec.heads)
        medians = deterministic and tracked
        noise = median_noise(self._hazard, heads) if medians else step_noise(self._seed, self._next_index, heads)[None]
        decision, self._state = self._policy.act(
            obs[None], np.asarray(blueprint_indices, dtype=np.int64)[None], batch,
            self._state, noise, deterministic and not medians,
        )  # fmt: skip
        if tracked:
            self._hazard = next_hazard(self._hazard, decision.actions, decision.log_probs)
        self._next_index += 1
        return Answer(
            decision.actions[0],
            decision.log_probs[0],
            float(decision.values[0]),
            self.policy_version,
            self._next_index - 1,
            continuous_values(spec, decision.actions[0]),
        )

    def reset(self, seed: int = 0) -> None:
        self._seed, self._next_index = seed, 0
        self._hazard = np.zeros(1)
        self._state = self._policy.initial_state(1)
