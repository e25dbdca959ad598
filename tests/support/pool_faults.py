"""Faults: what makes a real data plane wrong in one way, to prove that a test can fail.

Most change a document that Envoy reads, or the script in it, between the function that makes it
and the file. What Envoy cannot be told to do wrong is done by a broken proxy before it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from support import pool_fronts
from support.pool_fronts import Front
from vllm_pool.dataplane import config, files
from vllm_pool.dataplane.config import KEYED, UNKEYED, Document

Change = Callable[[Document], object]
MIB = 1024 * 1024
_EVER = "86400s"


class StaleFaultError(Exception):
    """A fault does not fit what it is to break any more."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        name: What the pool does with it, as a sentence.
        routes: Changes the routes in place.
        bootstrap: Changes the bootstrap in place.
        endpoints: Changes the members in place.
        endpoints_anew: Makes such a change, which remembers what it has seen.
        script: Returns what becomes of the key's script.
        front: A broken proxy before the pool.
        code: Functions and values of `files` or `config` to replace, as (module, name, value).
    """

    name: str
    routes: Change | None = None
    bootstrap: Change | None = None
    endpoints: Change | None = None
    endpoints_anew: Callable[[], Change] | None = None
    script: Callable[[str], str] | None = None
    front: type[Front] | None = None
    code: Sequence[tuple[Any, str, Any]] = field(default=())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Every data plane that is made within the block has the fault."""
        with contextlib.ExitStack() as stack:
            for name in ("routes", "bootstrap", "endpoints"):
                change = getattr(self, name)
                if change is not None:
                    stack.enter_context(_changed(name, change))
            if self.endpoints_anew is not None:
                stack.enter_context(_changed("endpoints", self.endpoints_anew()))
            if self.script is not None:
                stack.enter_context(_rewritten(self.script))
            for module, name, value in self.code:
                stack.enter_context(mock.patch.object(module, name, value))
            yield


def _changed(name: str, change: Change) -> contextlib.AbstractContextManager[Any]:
    make = getattr(config, name)

    def changed(*args: Any, **kwargs: Any) -> Document:
        document: Document = make(*args, **kwargs)
        change(document)
        return document

    return mock.patch.object(config, name, changed)


def _rewritten(script: Callable[[str], str]) -> contextlib.AbstractContextManager[Any]:
    write = files.write_atomically

    def rewritten(path: Path, content: bytes) -> bool:
        if path.name == config.LUA_FILE:
            content = script(content.decode()).encode()
        return write(path, content)

    return mock.patch.object(files, "write_atomically", rewritten)


# Where things are in the documents.


def _hcm(bootstrap: Document) -> Document:
    chain = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]
    found: Document = chain["filters"][0]["typed_config"]
    return found


def _clusters(bootstrap: Document) -> list[Document]:
    clusters = bootstrap["static_resources"]["clusters"]
    return [cluster for cluster in clusters if cluster["name"] in (KEYED, UNKEYED)]


def _table(routes: Document) -> list[Document]:
    found: list[Document] = routes["resources"][0]["virtual_hosts"][0]["routes"]
    return found


def _to_replicas(routes: Document) -> list[Document]:
    return [
        route
        for route in _table(routes)
        if route.get("route", {}).get("cluster") in (KEYED, UNKEYED)
    ]


def _members(endpoints: Document) -> list[Document]:
    found: list[Document] = endpoints["resources"][0]["endpoints"][0]["lb_endpoints"]
    return found


# Ways to make faults.


def _of_hcm(name: str, **fields: Any) -> Fault:
    return Fault(name, bootstrap=lambda document: _hcm(document).update(fields))


def _of_clusters(name: str, **fields: Any) -> Fault:
    def change(document: Document) -> None:
        for cluster in _clusters(document):
            cluster.update(fields)

    return Fault(name, bootstrap=change)


def _of_members(name: str, **fields: Any) -> Fault:
    def change(document: Document) -> None:
        for member in _members(document):
            member.update(fields)

    return Fault(name, endpoints=change)


def _of_actions(name: str, **fields: Any) -> Fault:
    def change(document: Document) -> None:
        for route in _to_replicas(document):
            route["route"].update(fields)

    return Fault(name, routes=change)


def _of_retries(name: str, **fields: Any) -> Fault:
    def change(document: Document) -> None:
        for route in _to_replicas(document):
            route["route"]["retry_policy"].update(fields)

    return Fault(name, routes=change)


def _without(name: str, *, drop: Callable[[Document], bool]) -> Fault:
    """Return the fault that some routes are missing."""

    def change(document: Document) -> None:
        table = _table(document)
        kept = [route for route in table if not drop(route)]
        if len(kept) == len(table):
            raise StaleFaultError(f"{name}: there are no such routes")
        table[:] = kept

    return Fault(name, routes=change)


def _refuses(route: Document, status: int) -> bool:
    return bool(route.get("direct_response", {}).get("status") == status)


def _to_manager(route: Document) -> bool:
    return bool(route.get("route", {}).get("cluster") == config.MANAGER)


def _replaced(name: str, *pairs: tuple[str, str]) -> Fault:
    """Return the fault of a script with other words in some places."""

    def script(text: str) -> str:
        for old, new in pairs:
            if old not in text:
                raise StaleFaultError(f"{name}: the script has no {old!r}")
            text = text.replace(old, new)
        return text

    return Fault(name, script=script)


def _appended(name: str, lua: str) -> Fault:
    return Fault(name, script=lambda text: f"{text}\n{lua}\n")


def _rewriting(name: str, lua: str) -> Fault:
    """Return the fault of a script that makes another `text` of a body."""
    return _appended(
        name,
        f"""
local right = envoy_on_request
function envoy_on_request(handle)
  right(handle)
  local body = handle:body()
  if not body then return end
  local text = body:getBytes(0, body:length())
  {lua}
  body:setBytes(text)
  handle:headers():replace("content-length", tostring(#text))
end""",
    )


# Requests.

reserialises_bodies = _rewriting("writes JSON anew", "text = string.gsub(text, '%s+', '')")
takes_bytes_for_text = _rewriting(
    "takes bodies for text", "text = string.gsub(text, '[\\128-\\255]', '?')"
)
rounds_numbers = _rewriting(
    "rounds numbers to a double",
    "text = string.gsub(text, '%d+', function(n) return string.format('%.17g', tonumber(n)) end)",
)
drops_unknown_fields = _rewriting(
    "drops fields that it does not know",
    "text = string.gsub(text, ',\"return_token_ids\":true', '')",
)
drops_the_query = _appended(
    "drops the query",
    """
local right = envoy_on_request
function envoy_on_request(handle)
  right(handle)
  local path = string.gsub(handle:headers():get(":path"), "%?.*", "")
  handle:headers():replace(":path", path)
end""",
)
tidies_paths = _of_hcm("tidies paths", normalize_path=True, merge_slashes=True)
unescapes_paths = _of_hcm(
    "unescapes slashes in paths", path_with_escaped_slashes_action="UNESCAPE_AND_FORWARD"
)
knows_only_v1 = _without(
    "knows only paths below /v1",
    drop=lambda route: route["match"].get("prefix") == "/" and "route" in route,
)


def _dropped_headers(routes: Document) -> list[str]:
    found: list[str] = routes["resources"][0]["request_headers_to_remove"]
    return found


def _removing(name: str, header: str) -> Fault:
    return Fault(name, routes=lambda document: _dropped_headers(document).append(header))


def _keeping(name: str, header: str) -> Fault:
    return Fault(name, routes=lambda document: _dropped_headers(document).remove(header))


drops_headers = _removing("drops headers that it does not know", "traceparent")
passes_hop_by_hop = _keeping("passes headers of the hop", "te")
passes_the_token = _keeping("passes the token on", "authorization")
trusts_envoys_headers = _of_hcm(
    "takes Envoy's own headers from clients",
    internal_address_config={
        "cidr_ranges": [{"address_prefix": "127.0.0.0", "prefix_len": 8}]
    },
)  # fmt: skip
names_itself_server = _of_hcm(
    "names itself as the server", server_header_transformation="OVERWRITE"
)
makes_its_own_ids = _of_hcm("gives each request another id", preserve_external_request_id=False)
makes_no_ids = _of_hcm("makes no ids", generate_request_id=False)
passes_100_continue = _of_hcm("waits for the replica's 100", proxy_100_continue=True)


def _refuse_chunks(document: Document) -> None:
    unsaid = {"name": "content-length", "present_match": True, "invert_match": True}
    post = {"name": ":method", "string_match": {"exact": "POST"}}
    table = _table(document)
    answer = {"status": 411, "body": {"inline_string": "a length is needed"}}
    off = next(route for route in table if "direct_response" in route)["typed_per_filter_config"]
    table.insert(
        0,
        {"match": {"prefix": "/", "headers": [post, unsaid]}, "direct_response": answer,
         "typed_per_filter_config": off},
    )  # fmt: skip


needs_a_length = Fault("refuses bodies in chunks", routes=_refuse_chunks)


def _one_request(document: Document) -> None:
    _hcm(document)["common_http_protocol_options"]["max_requests_per_connection"] = 1


closes_after_one = Fault("closes after one request", bootstrap=_one_request)


def _one_request_upstream(document: Document) -> None:
    for cluster in _clusters(document):
        for options in cluster["typed_extension_protocol_options"].values():
            options["common_http_protocol_options"]["max_requests_per_connection"] = 1


connects_for_each = Fault("connects anew for each request", bootstrap=_one_request_upstream)

# What is the manager's, and the token.

sends_health_to_replicas = _without(
    "sends /health to replicas", drop=lambda route: route["match"].get("path") in config.OPEN_PATHS
)
sends_pool_paths_to_replicas = _without(
    "sends the pool's own paths to replicas",
    drop=lambda route: _to_manager(route) and route["match"].get("prefix") == "/pool/",
)
sends_refits_to_one = _without(
    "sends a refit to one replica",
    drop=lambda route: _to_manager(route) and route["match"].get("path") in config.MANAGER_PATHS,
)
asks_for_no_token = _without("asks for no token", drop=lambda route: _refuses(route, 401))


def _token_of(document: Document) -> tuple[list[Document], Document]:
    table = _table(document)
    return table, next((route for route in table if _refuses(route, 401)), {})


def _token_first(document: Document) -> None:
    table, check = _token_of(document)
    if check:
        table.remove(check)
        table.insert(0, check)


def _token_begins(document: Document) -> None:
    _, check = _token_of(document)
    (header,) = check["match"]["headers"]
    header["string_match"] = {"prefix": header["string_match"]["exact"]}


locks_health = Fault("asks for the token at /health", routes=_token_first)
takes_what_begins_with_the_token = Fault("takes what begins with the token", routes=_token_begins)
writes_for_everybody = Fault("writes files for everybody", code=[(files, "_PRIVATE", 0o644)])


def _no_patience(document: Document) -> None:
    for route in _table(document):
        if _to_manager(route):
            route["route"].pop("retry_policy")


waits_for_no_manager = Fault("waits for no manager", routes=_no_patience)

# Refusals.

takes_length_and_chunks = _of_hcm(
    "takes a length beside chunks", http_protocol_options={"allow_chunked_length": True}
)
takes_two_lengths = Fault("takes the first of two lengths", front=pool_fronts.FirstLengthCounts)
takes_blanks = Fault("takes blanks before the colon", front=pool_fronts.ForgivesBlanks)
unfolds = Fault("makes a header of a fold", front=pool_fronts.Unfolds)
makes_up_a_host = Fault("makes up a host", front=pool_fronts.NamesAHost)
drops_nul = Fault("drops NUL", front=pool_fronts.DropsNul)
reads_chunks_loosely = Fault("reads chunks loosely", front=pool_fronts.ReadsChunksLoosely)
passes_over_bytes = Fault(
    "passes over what is between chunks",
    bootstrap=lambda document: document.pop("layered_runtime"),
)
takes_two_hosts = _without("takes two hosts", drop=lambda route: _refuses(route, 400))


def _header_limits(kib: int, count: int) -> Change:
    def change(document: Document) -> None:
        hcm = _hcm(document)
        hcm["max_request_headers_kb"] = kib
        hcm["common_http_protocol_options"]["max_headers_count"] = count

    return change


takes_giant_headers = Fault("takes giant headers", bootstrap=_header_limits(512, 200))
takes_many_headers = Fault("takes many headers", bootstrap=_header_limits(64, 1000))
takes_small_headers_only = Fault("takes small headers only", bootstrap=_header_limits(8, 200))
takes_long_bodies = _without("takes long bodies", drop=lambda route: _refuses(route, 413))


def _buffers(limit: int) -> Change:
    def change(document: Document) -> None:
        for route in _to_replicas(document):
            route["request_body_buffer_limit"] = limit

    return change


takes_endless_bodies = Fault("takes bodies without an end", routes=_buffers(512 * MIB))
keeps_small_bodies_only = Fault("keeps only small bodies for another try", routes=_buffers(MIB))
waits_for_headers = _of_hcm("waits for headers", request_headers_timeout="0s")
waits_for_bodies = _of_hcm("waits for bodies", request_timeout="0s")


def _idle_clients(document: Document) -> None:
    _hcm(document)["common_http_protocol_options"]["idle_timeout"] = _EVER


keeps_idle_clients = Fault("keeps clients that say nothing", bootstrap=_idle_clients)

# Retries.

_FAILURES = "connect-failure,refused-stream,reset,retriable-status-codes"
_STATUSES = [500, 502, 503, 504]


def passes_status(status: int) -> Fault:
    """Return the fault that an answer of this status is passed on and not tried again."""
    return _of_retries(
        f"passes {status} on", retry_on=_FAILURES,
        retriable_status_codes=[each for each in _STATUSES if each != status],
    )  # fmt: skip


def asks_again_after(status: int) -> Fault:
    """Return the fault that an answer of this status, the client's fault, is tried again."""
    return _of_retries(
        f"asks again after {status}", retry_on=_FAILURES,
        retriable_status_codes=[*_STATUSES, status],
    )  # fmt: skip


# To Envoy, a reset is a gateway's error too.
passes_resets = _of_retries(
    "passes resets on", retry_on="connect-failure,retriable-status-codes",
    retriable_status_codes=_STATUSES,
)  # fmt: skip
passes_refusals = _of_retries(
    "passes refused connections on", retry_on="retriable-status-codes",
    retriable_status_codes=_STATUSES,
)  # fmt: skip
asks_the_same_again = _of_retries("asks the same again", retry_host_predicate=[], num_retries=4)
asks_two_at_most = _of_retries("asks two at most", num_retries=1)
asks_ten = _of_retries("asks ten", num_retries=9)
never_asks_another = _of_retries("never asks another", num_retries=0)
rewrites_errors = _appended(
    "rewrites errors",
    """
function envoy_on_response(handle)
  if tonumber(handle:headers():get(":status")) >= 500 then
    handle:body(true):setBytes("error")
    handle:headers():replace("content-length", "5")
  end
end""",
)
rewrites_refusals = _appended(
    "rewrites refusals",
    """
function envoy_on_response(handle)
  local status = tonumber(handle:headers():get(":status"))
  if status >= 400 and status < 500 then handle:headers():replace(":status", "400") end
end""",
)
says_plain_text = Fault(
    "says errors of its own as plain text",
    bootstrap=lambda document: _hcm(document).pop("local_reply_config"),
)


def _never_ready(document: Document) -> None:
    _hcm(document)["local_reply_config"]["mappers"].pop(1)


says_no_time = Fault("does not say when to come back", bootstrap=_never_ready)


def _throw_out(document: Document) -> None:
    for cluster in _clusters(document):
        cluster["outlier_detection"].update(
            {"consecutive_5xx": 3, "enforcing_consecutive_5xx": 100, "max_ejection_percent": 100,
             "base_ejection_time": "30s", "max_ejection_time": "30s"}
        )  # fmt: skip


throws_out_for_5xx = Fault("throws replicas out for 5xx", bootstrap=_throw_out)


def _budget(document: Document) -> None:
    for cluster in _clusters(document):
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        threshold.pop("retry_budget")
        threshold["max_retries"] = 1


retries_one_at_a_time = Fault("asks again for one request at a time", bootstrap=_budget)


def _no_try_timeout(document: Document) -> None:
    for route in _to_replicas(document):
        route["route"]["retry_policy"].pop("per_try_timeout")


waits_for_the_first_byte = Fault("waits for the first byte", routes=_no_try_timeout)

# Streams.

collects_answers = _appended(
    "collects an answer before it passes it", "function envoy_on_response(handle) handle:body() end"
)
cuts_long_answers = Fault("cuts long answers", front=pool_fronts.CutsLongAnswers)
ends_cut_streams = Fault("ends cut streams well", front=pool_fronts.EndsCutStreams)
ends_by_closing = Fault("ends answers by closing", front=pool_fronts.EndsByClosing)
works_for_nobody = Fault("works on when the client has gone", front=pool_fronts.WorksForNobody)


def _hoard(document: Document) -> None:
    for one in (*_clusters(document), *document["static_resources"]["listeners"]):
        one["per_connection_buffer_limit_bytes"] = 1024 * MIB


hoards = Fault("collects what nobody reads", bootstrap=_hoard)
waits_in_silence = _of_hcm("waits in silence", stream_idle_timeout="0s")
limits_the_whole = _of_actions("limits the whole and not the silence", timeout="1s")


def _few(document: Document) -> None:
    for cluster in _clusters(document):
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        threshold.update(
            {"max_requests": 150, "max_connections": 150, "max_pending_requests": 1024}
        )


has_few_in_flight = Fault("has 150 in flight", bootstrap=_few)

# Members.

ignores_drains = _of_members("ignores drains", health_status="HEALTHY")
ignores_weights = _of_members("ignores weights", load_balancing_weight=100)


def _never_forget() -> Change:
    seen: dict[str, Document] = {}

    def change(document: Document) -> None:
        members = _members(document)
        seen.update({member["endpoint"]["hostname"]: member for member in members})
        members[:] = [seen[name] for name in sorted(seen)]

    return change


never_forgets = Fault("never forgets a member", endpoints_anew=_never_forget)


def _empty_first() -> Callable[[Path, Sequence[config.Backend]], bool]:
    write = files.write_endpoints

    def empty_first(run_dir: Path, backends: Sequence[config.Backend]) -> bool:
        write(run_dir, [])
        threading.Event().wait(0.1)
        return write(run_dir, backends)

    return empty_first


def _late() -> Callable[[Path, Sequence[config.Backend]], bool]:
    write = files.write_endpoints

    def late(run_dir: Path, backends: Sequence[config.Backend]) -> bool:
        if not files._members(run_dir):
            return write(run_dir, backends)
        threading.Timer(0.55, write, (run_dir, backends)).start()
        return True

    return late


tells_late = Fault("tells Envoy late", code=[(files, "write_endpoints", _late())])
empties_at_changes = Fault(
    "empties the pool at each change", code=[(files, "write_endpoints", _empty_first())]
)
forgets_at_restarts = Fault(
    "forgets its members when it is started again", code=[(files, "_members", lambda _: None)]
)


def _count_nothing(document: Document) -> None:
    patterns = document["stats_config"]["stats_matcher"]["inclusion_list"]["patterns"]
    patterns[:] = [each for each in patterns if "retry" not in each.get("suffix", "")]


counts_no_retries = Fault("counts no retries", bootstrap=_count_nothing)

# Keys.


def _session_unread(document: Document) -> None:
    for route in _to_replicas(document):
        for policy in route["route"].get("hash_policy", []):
            policy["header"]["header_name"] = "x-request-id"


def _one_key(document: Document) -> None:
    for route in _to_replicas(document):
        for policy in route["route"].get("hash_policy", []):
            policy["header"]["header_name"] = ":authority"


forgets_sessions = Fault("forgets sessions", routes=_session_unread)
puts_all_on_one = Fault("puts all keys on one replica", routes=_one_key)
keys_the_whole_conversation = _replaced(
    "takes the whole conversation for the key", ("'\"assistant\"'", "'\"nobody\"'")
)
keys_up_to_the_word = _replaced(
    "ends the key at the word assistant",
    (
        "return sub(text, from, elements_end(text, from))",
        'return sub(text, from, find(text, "assistant", from, true) or elements_end(text, from))',
    ),
)
keys_the_whole_body = _replaced(
    "takes the whole body for the key",
    ("local key = body and", "local key = body and body:getBytes(0, body:length()) or body and"),
)
keys_the_first_bytes = _replaced(
    "takes the first 40 bytes of the messages for the key",
    ("return sub(text, from, elements_end(text, from))", "return sub(text, from, from + 40)"),
)
keys_without_end = _replaced("takes long keys whole", ("WINDOW = 8192", "WINDOW = 1048576"))
keys_no_prompt = _replaced("takes no prompt for a key", ("'\"prompt\"'", "'\"nothing\"'"))


def _salt() -> Change:
    count = itertools.count()

    def change(document: Document) -> None:
        salt = next(count)
        for member in _members(document):
            key = member["metadata"]["filter_metadata"]["envoy.lb"]
            key["hash_key"] += f"-{salt}"

    return change


places_by_address = Fault(
    "places replicas by their addresses",
    endpoints=lambda document: [member.pop("metadata") for member in _members(document)],
)
places_at_random = Fault("places replicas as no other balancer does", endpoints_anew=_salt)


def _policy(name: str, policy: Mapping[str, Any]) -> Change:
    def change(document: Document) -> None:
        for cluster in _clusters(document):
            if cluster["name"] == name:
                for old in ("maglev_lb_config", "load_balancing_policy"):
                    cluster.pop(old, None)
                cluster["common_lb_config"].pop("consistent_hashing_lb_config", None)
                cluster.update(policy)

    return change


takes_turns = Fault("takes turns", bootstrap=_policy(UNKEYED, {"lb_policy": "ROUND_ROBIN"}))
shares_by_chance = Fault("shares keys by chance", bootstrap=_policy(KEYED, {"lb_policy": "RANDOM"}))


def _unbounded(document: Document) -> None:
    for cluster in _clusters(document):
        cluster["common_lb_config"].pop("consistent_hashing_lb_config", None)


never_spills = Fault("never spills", bootstrap=_unbounded)
shows_its_key = Fault(
    "passes its key on",
    code=[(config, "KEY_HEADER", "x-pool-key")],
    script=lambda text: text.replace('":pool-key"', '"x-pool-key"'),
)
