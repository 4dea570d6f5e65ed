"""The Lua files of `lua/` as one Redis function library, and as one script for servers before Redis 7."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from actors.transport.ledger import Ledger

KEYS = {
    "new_incarnation": "ledger health retired",
    "put": "episodes ledger generations weights dead room health retired payload:",
    "import": "episodes ledger generations weights dead room health retired imported payload:",
    "report": "ledger generations health retired",
    "claim": "ledger generations replies",
    "open": "episodes ledger generations weights dead room attempts replies health retired payload:",
    "take": "episodes ledger generations dead room replies",
    "resize": "ledger generations replies",
    "pending": "episodes ledger generations",
    "begin_attempt": "episodes ledger generations attempts replies",
    "end_attempt": "episodes ledger generations attempts replies",
    "settle": "episodes ledger generations attempts replies payload:",
    "revoke": "ledger generations replies",
    "dead_letter": "episodes ledger generations dead attempts replies payload:",
    "requeue": "episodes ledger generations dead replies payload:",
    "publish": "generations weights",
}
"""The keys that each verb accesses, without the namespace; access rights are checked against them."""


def _naming(verb: str) -> str:
    """Return a Lua function that maps the keys of a call to their names."""
    names = [name.rstrip(":") for name in KEYS[verb].split()]
    table = ", ".join(f"{name} = keys[{i}]" for i, name in enumerate(names, 1))
    return f"function named.{verb}(keys) return {{{table}}} end\n"


_SETTLED = ", ".join(f"'{term}'" for term in Ledger.SETTLED)
_LUA = (
    f"local SETTLED = {{{_SETTLED}}}\n"
    + "".join(
        files("actors.transport").joinpath("lua", f"{name}.lua").read_text("utf-8")
        for name in ("store", "incarnations", "producer", "consumer", "weights")
    )
    + "local named = {}\n"
    + "".join(_naming(verb) for verb in KEYS)
)
LIBRARY = f"tamiyo_{hashlib.sha256(_LUA.encode()).hexdigest()[:12]}"  # so that versions of Tamiyo can share a server
NEEDS_MEMORY = ("put", "import", "publish")
# All other verbs may run when the server is out of memory, so that memory can be freed. Functions are registered one by
# one, as loops over `redis.register_function` fail on load.
FUNCTIONS = f"#!lua name={LIBRARY}\n{_LUA}" + "".join(
    f"redis.register_function{{function_name='{LIBRARY}_{verb}', "
    f"callback=function(keys, args) return transact(verbs.{verb}, named.{verb}(keys), args) end"
    + ("}\n" if verb in NEEDS_MEMORY else ", flags={'allow-oom'}}\n")
    for verb in KEYS
)
# A script that is out of memory may continue to write after a first write that needs no memory, here HDEL.
SCRIPT = (
    _LUA
    + """
local k = named[ARGV[1]](KEYS)
local needs_memory = {put = true, import = true, publish = true}
if not needs_memory[ARGV[1]] then redis.call('HDEL', k.ledger, '') end
return transact(verbs[ARGV[1]], k, {unpack(ARGV, 2)})
"""
)
SCRIPT_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
