"""`model_info`: the response to GetModel."""

from __future__ import annotations

from actors.serving.options import ServeOptions
from actors.serving.server.models import ModelVersions
from actors.version import installed
from actors.wire import policy_pb2


def model_info(models: ModelVersions, options: ServeOptions) -> policy_pb2.GetModelResponse:
    """Describe the served model, the spaces that it accepts, and the limits of the server."""
    response = policy_pb2.GetModelResponse(
        policy_version=models.newest.version,
        generation=models.newest.generation,
        held_versions=sorted(model.version for model in models.held),
        spaces_json=models.spaces.to_json(),
        session_ttl_s=options.session_ttl_s,
        first_step_ttl_s=options.first_step_ttl_s,
        max_message_bytes=options.max_message_bytes,
        server=installed(),
    )
    for spaces_hash, layout in models.layouts.items():
        spaces = layout.spaces
        response.accepted.add(slots=spaces.slots, spaces_hash=spaces_hash, obs_size=spaces.obs_size)
    for head in models.spaces.action.heads:
        response.heads.add(name=head.name, choices=head.choices)
    return response
