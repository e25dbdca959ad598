"""What Envoy is told, as plain values: its bootstrap, its routes and its endpoints.

Everything here is a pure function of its arguments; `files` writes the results.

Three documents, because they change at different times:

* `bootstrap` never changes while Envoy runs;
* `routes` changes with the number of members, since a request must not be asked again of a
  replica that it has failed on, and Envoy counts retries and not replicas;
* `endpoints` changes with every member.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_pool.core import refit

MIB = 1024 * 1024

BOOTSTRAP_FILE = "bootstrap.json"
ROUTES_FILE = "routes.json"
ENDPOINTS_FILE = "eds.json"
LUA_FILE = "affinity.lua"
MANAGER_SOCKET = "manager.sock"
ADMIN_SOCKET = "envoy-admin.sock"

KEYED, UNKEYED, MANAGER = "keyed", "unkeyed", "manager"
ENDPOINTS_NAME = "replicas"

# Names that begin with a colon can not come from an HTTP/1 client, since the parser refuses
# them, and are never written to an HTTP/1 upstream: made for what one filter tells another.
KEY_HEADER = ":pool-key"
NO_KEY_HEADER = ":pool-no-key"
#: A client's own key.
SESSION = "x-session-id"

OPEN_PATHS = ("/health", "/ready")
MANAGER_PATHS = tuple(f"/{word}" for word in refit.WORDS)
MANAGER_PREFIXES = ("/pool/", f"/{refit.NEW_WEIGHTS}")

_TYPES = "type.googleapis.com/envoy"
# A refit loads weights while nothing is written to the client.
_MANAGER_IDLE_SECONDS = 3600.0

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Backend:
    """One replica as Envoy has to know it.

    `weight` is its share, from 1 to 100 (a slow start has a small one); a draining replica
    finishes what it has and gets nothing new.
    """

    id: str
    host: str
    port: int
    weight: int = 100
    draining: bool = False

    def __post_init__(self) -> None:
        """Refuse what Envoy would refuse, with the value seen.

        Raises:
            ValueError: the host is no address, or a number is out of its range.
        """
        ipaddress.ip_address(self.host)
        if not 1 <= self.port <= 65535:  # noqa: PLR2004 - the range of ports
            raise ValueError(f"replica {self.id}: port {self.port} is not in 1..65535")
        if not 1 <= self.weight <= 100:  # noqa: PLR2004 - per cent
            raise ValueError(f"replica {self.id}: weight {self.weight} is not in 1..100")


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """What the data plane is built from. Seconds, bytes and counts are what the names say."""

    run_dir: Path
    listen_host: str = "127.0.0.1"
    listen_port: int = 8000
    token: str | None = None
    connect_seconds: float = 2.0
    # Silence in both directions, of a whole stream: a generation that is not streamed is
    # silent from the first to the last of its tokens.
    idle_seconds: float = 1800.0
    # Time to the first byte of one try; none, since it can be as long as the generation.
    first_byte_seconds: float | None = None
    # A replica closes idle connections itself (vLLM after 5 s); a request that is on its way
    # at that moment is lost, so the balancer closes them first.
    upstream_idle_seconds: float = 4.0
    client_idle_seconds: float = 300.0
    headers_seconds: float = 10.0
    request_seconds: float = 300.0
    max_body_bytes: int = 64 * MIB
    max_header_kib: int = 64
    max_headers: int = 200
    retries: int = 4
    threads: int = 2
    max_connections: int = 65536
    max_heap_bytes: int = 4096 * MIB
    # A replica may have this many per cent of its fair share in flight before its keys spill.
    balance_percent: int = 150
    # What is held of a reply that the client does not read, of each side.
    stream_buffer_bytes: int = 256 * 1024

    def retries_for(self, members: int) -> int:
        """Return how often a request may be tried again in a pool of so many members."""
        return max(0, min(self.retries, members - 1))


def _seconds(value: float) -> str:
    return f"{value:.3f}s"


def _typed(kind: str, /, **fields: Any) -> Document:
    return {"@type": f"{_TYPES}.{kind}", **fields}


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}


def _runtime_code(code: int) -> Document:
    return {
        "status_code_filter": {
            "comparison": {
                "op": "EQ",
                "value": {"default_value": code, "runtime_key": f"vllm_pool.status_{code}"},
            }
        }
    }


def _local_replies() -> Document:
    """Return the form of every answer that is Envoy's own: JSON, in the shape vLLM uses."""

    def body(message: str) -> Document:
        return {
            "json_format": {
                "error": {
                    "message": message,
                    "type": "vllm_pool",
                    "code": "%RESPONSE_CODE%",
                    "reason": "%RESPONSE_FLAGS%",
                }
            }
        }

    retry_after = [
        {
            "header": {"key": "retry-after", "value": "1"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }
    ]
    no_replica = {
        "and_filter": {
            "filters": [
                _runtime_code(503),
                {"response_flag_filter": {"flags": ["UH"]}},
            ]
        }
    }
    return {
        "mappers": [
            {
                "filter": no_replica,
                "body_format_override": body("no replica of this pool is in rotation"),
                "headers_to_add": retry_after,
            },
            {"filter": _runtime_code(503), "headers_to_add": retry_after},
        ],
        "body_format": body("%LOCAL_REPLY_BODY%"),
    }


def _retry_policy(settings: PlaneSettings, members: int) -> Document:
    policy: Document = {
        "retry_on": "connect-failure,refused-stream,reset,gateway-error,retriable-status-codes",
        "retriable_status_codes": [500],
        "num_retries": settings.retries_for(members),
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": _typed(
                    "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                ),
            }
        ],
        # A pick that was tried already is thrown again; each throw costs a look into the ring.
        "host_selection_retry_max_attempts": 300,
        # The next try is another replica: there is nothing to wait for.
        "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.020s"},
    }
    if settings.first_byte_seconds is not None:
        policy["per_try_timeout"] = _seconds(settings.first_byte_seconds)
    return policy


def routes(settings: PlaneSettings, members: int) -> Document:
    """Return the file-RDS document for a pool of so many members."""
    no_lua = {
        "envoy.filters.http.lua": _typed(
            "extensions.filters.http.lua.v3.LuaPerRoute", disabled=True
        )
    }

    def refuse(match: Document, status: int, message: str) -> Document:
        return {
            "match": match,
            "direct_response": {"status": status, "body": {"inline_string": message}},
            "typed_per_filter_config": no_lua,
        }

    def to_manager(match: Document) -> Document:
        return {
            "match": match,
            "typed_per_filter_config": no_lua,
            "route": {
                "cluster": MANAGER,
                "timeout": "0s",
                "idle_timeout": _seconds(_MANAGER_IDLE_SECONDS),
                # While the manager is started again, who asks waits a moment instead of failing.
                "retry_policy": {
                    "retry_on": "connect-failure",
                    "num_retries": 20,
                    "retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"},
                },
            },
        }

    def to_replicas(
        match: Document, cluster: str, key: str | None = None, *, lua: bool = False
    ) -> Document:
        action: Document = {
            "cluster": cluster,
            "timeout": "0s",
            "retry_policy": _retry_policy(settings, members),
        }
        if key is not None:
            action["hash_policy"] = [{"header": {"header_name": key}}]
        route: Document = {
            "match": match,
            "route": action,
            "request_body_buffer_limit": settings.max_body_bytes,
        }
        if not lua:
            route["typed_per_filter_config"] = no_lua
        return route

    post = {"name": ":method", "string_match": {"exact": "POST"}}

    def has(header: str) -> Document:
        return {"name": header, "present_match": True}

    def by_key(prefix: str) -> list[Document]:
        """Return the routes of a session, of what the script found no key in, and of the rest."""
        return [
            to_replicas({"prefix": prefix, "headers": [has(SESSION)]}, KEYED, SESSION),
            to_replicas({"prefix": prefix, "headers": [has(NO_KEY_HEADER)]}, UNKEYED, lua=True),
            to_replicas({"prefix": prefix, "headers": [post]}, KEYED, KEY_HEADER, lua=True),
        ]

    table = [to_manager({"path": path}) for path in OPEN_PATHS]
    if settings.token is not None:
        other = {
            "name": "authorization",
            "string_match": {"exact": f"Bearer {settings.token}"},
            "invert_match": True,
            "treat_missing_header_as_empty": True,
        }
        table.append(
            refuse(
                {"prefix": "/", "headers": [other]},
                401,
                "this pool needs its bearer token in the Authorization header",
            )
        )
    too_long = {
        "name": "content-length",
        "range_match": {"start": settings.max_body_bytes + 1, "end": 2**62},
    }
    # Envoy joins two Host headers with a comma, which no name has.
    two_hosts = {"name": ":authority", "string_match": {"contains": ","}}
    table += [
        refuse({"prefix": "/", "headers": [two_hosts]}, 400, "more than one host is named"),
        refuse(
            {"prefix": "/", "headers": [too_long]},
            413,
            f"the body is longer than the pool's limit of {settings.max_body_bytes} bytes",
        ),
        *by_key("/v1/"),
        *(to_manager({"path": path}) for path in MANAGER_PATHS),
        *(to_manager({"prefix": prefix}) for prefix in MANAGER_PREFIXES),
        to_manager({"path": "/pool"}),
        *by_key("/"),
        to_replicas({"prefix": "/"}, UNKEYED),
    ]
    table_of_routes = _typed(
        "config.route.v3.RouteConfiguration",
        name="pool",
        virtual_hosts=[{"name": "pool", "domains": ["*"], "routes": table}],
        # The token is the pool's own. The next three are of one hop only, and Envoy leaves them.
        # The last two it adds by itself.
        request_headers_to_remove=[
            "authorization",
            "proxy-authorization",
            "te",
            "trailer",
            "x-envoy-external-address",
            "x-envoy-internal",
        ],
    )
    return {
        "version_info": f"retries-{settings.retries_for(members)}",
        "resources": [table_of_routes],
    }


def endpoints(backends: Sequence[Backend], version: str) -> Document:
    """Return the file-EDS document that both clusters of replicas read.

    The order is by id, so that equal members make an equal document.
    """

    def endpoint(backend: Backend) -> Document:
        return {
            "endpoint": {
                "address": _address(backend.host, backend.port),
                # Envoy's own reports name the endpoint by it; requests keep their own Host.
                "hostname": backend.id,
            },
            "health_status": "DRAINING" if backend.draining else "HEALTHY",
            "load_balancing_weight": backend.weight,
            # The place on the ring belongs to the id: a relaunch elsewhere keeps its keys, and
            # two balancers agree.
            "metadata": {"filter_metadata": {"envoy.lb": {"hash_key": backend.id}}},
        }

    ordered = sorted(backends, key=lambda backend: backend.id)
    assignment = _typed(
        "config.endpoint.v3.ClusterLoadAssignment",
        cluster_name=ENDPOINTS_NAME,
        endpoints=[{"lb_endpoints": [endpoint(backend) for backend in ordered]}],
    )
    return {"version_info": version, "resources": [assignment]}


def _clusters(settings: PlaneSettings) -> list[Document]:
    run = settings.run_dir
    many = settings.max_connections
    http = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _typed(
            "extensions.upstreams.http.v3.HttpProtocolOptions",
            common_http_protocol_options={
                "idle_timeout": _seconds(settings.upstream_idle_seconds),
                "max_headers_count": settings.max_headers,
            },
            explicit_http_config={"http_protocol_options": {}},
        )
    }

    def replicas(name: str, policy: Document, lb_config: Document) -> Document:
        return {
            "name": name,
            "type": "EDS",
            "eds_cluster_config": {
                "service_name": ENDPOINTS_NAME,
                "eds_config": {
                    "path_config_source": {"path": str(run / ENDPOINTS_FILE)},
                    "resource_api_version": "V3",
                    "initial_fetch_timeout": "1s",
                },
            },
            "connect_timeout": _seconds(settings.connect_seconds),
            "per_connection_buffer_limit_bytes": settings.stream_buffer_bytes,
            **policy,
            "common_lb_config": {
                # With no live member the answer is 503 at once, never a try at a dead one.
                "healthy_panic_threshold": {"value": 0},
                # Changes of weight and health act at once, as arrivals do.
                "update_merge_window": "0s",
                **lb_config,
            },
            "circuit_breakers": {
                "thresholds": [
                    {
                        "max_connections": many,
                        "max_pending_requests": many,
                        "max_requests": many,
                        "retry_budget": {
                            "budget_percent": {"value": 75},
                            "min_retry_concurrency": 100,
                        },
                    }
                ]
            },
            # Who cannot be reached is left out for a moment, until the manager has seen it too.
            # An answer of 5xx never counts: one bad prompt would throw out every replica.
            "outlier_detection": {
                "split_external_local_origin_errors": True,
                "consecutive_local_origin_failure": 3,
                "enforcing_consecutive_local_origin_failure": 100,
                "enforcing_local_origin_success_rate": 0,
                "enforcing_consecutive_5xx": 0,
                "enforcing_consecutive_gateway_failure": 0,
                "enforcing_success_rate": 0,
                "enforcing_failure_percentage": 0,
                "interval": "0.5s",
                "base_ejection_time": "1s",
                "max_ejection_time": "3s",
                "max_ejection_percent": 50,
            },
            "upstream_connection_options": {
                "tcp_keepalive": {
                    "keepalive_time": 15,
                    "keepalive_interval": 5,
                    "keepalive_probes": 3,
                }
            },
            "typed_extension_protocol_options": http,
        }

    return [
        replicas(
            KEYED,
            # Maglev and not a ring: Envoy's ring gives each replica fewer points when one is
            # added, and a tenth of the keys of the others moves; none of 200 moved here.
            {"lb_policy": "MAGLEV", "maglev_lb_config": {"table_size": 65537}},
            {
                "consistent_hashing_lb_config": {
                    "hash_balance_factor": settings.balance_percent,
                }
            },
        ),
        replicas(
            UNKEYED,
            {
                "load_balancing_policy": {
                    "policies": [
                        {
                            "typed_extension_config": {
                                "name": "envoy.load_balancing_policies.least_request",
                                "typed_config": _typed(
                                    "extensions.load_balancing_policies.least_request.v3"
                                    ".LeastRequest",
                                    selection_method="FULL_SCAN",
                                ),
                            }
                        }
                    ]
                }
            },
            {},
        ),
        {
            "name": MANAGER,
            "type": "STATIC",
            "connect_timeout": "1s",
            "load_assignment": {
                "cluster_name": MANAGER,
                "endpoints": [
                    {
                        "lb_endpoints": [
                            {"endpoint": {"address": {"pipe": {"path": str(run / MANAGER_SOCKET)}}}}
                        ]
                    }
                ],
            },
            "typed_extension_protocol_options": http,
        },
    ]


def _listener(settings: PlaneSettings) -> Document:
    manager = _typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="pool",
        codec_type="HTTP1",
        rds={
            "route_config_name": "pool",
            "config_source": {
                "path_config_source": {"path": str(settings.run_dir / ROUTES_FILE)},
                "resource_api_version": "V3",
            },
        },
        # The client is whoever connects. Nobody is told who it was: replicas have no use for it.
        use_remote_address=True,
        skip_xff_append=True,
        server_header_transformation="PASS_THROUGH",
        generate_request_id=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        request_id_extension={
            "typed_config": _typed(
                "extensions.request_id.uuid.v3.UuidRequestIdConfig",
                # A request's id is the client's; no bit of it is ours to change.
                pack_trace_reason=False,
                use_request_id_for_trace_sampling=False,
            )
        },
        max_request_headers_kb=settings.max_header_kib,
        common_http_protocol_options={
            "idle_timeout": _seconds(settings.client_idle_seconds),
            "max_headers_count": settings.max_headers,
        },
        stream_idle_timeout=_seconds(settings.idle_seconds),
        request_headers_timeout=_seconds(settings.headers_seconds),
        request_timeout=_seconds(settings.request_seconds),
        local_reply_config=_local_replies(),
        http_filters=[
            {
                "name": "envoy.filters.http.lua",
                "typed_config": _typed(
                    "extensions.filters.http.lua.v3.Lua",
                    default_source_code={"filename": str(settings.run_dir / LUA_FILE)},
                ),
            },
            {
                "name": "envoy.filters.http.router",
                "typed_config": _typed(
                    "extensions.filters.http.router.v3.Router",
                    suppress_envoy_headers=True,
                    dynamic_stats=False,
                ),
            },
        ],
    )
    return {
        "name": "pool",
        "address": _address(settings.listen_host, settings.listen_port),
        "per_connection_buffer_limit_bytes": settings.stream_buffer_bytes,
        "tcp_backlog_size": 4096,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }


# Counters that something reads: Envoy's balancing, the pool's metrics, the tests. Each that is
# left out costs no memory and no time.
KEPT_STATS = (
    "upstream_rq_active", "upstream_rq_total", "upstream_rq_retry",
    "upstream_rq_retry_success", "upstream_rq_retry_overflow", "upstream_rq_retry_limit_exceeded",
    "upstream_rq_cancelled", "upstream_rq_timeout", "upstream_rq_per_try_timeout",
    "upstream_rq_rx_reset", "upstream_rq_tx_reset", "upstream_rq_pending_overflow",
    "upstream_cx_active", "upstream_cx_connect_fail", "upstream_cx_none_healthy",
    "membership_total", "membership_healthy", "update_success", "update_rejected",
    "downstream_rq_active", "downstream_rq_total", "downstream_rq_completed",
    "downstream_rq_1xx", "downstream_rq_2xx", "downstream_rq_3xx", "downstream_rq_4xx",
    "downstream_rq_5xx", "downstream_rq_rx_reset", "downstream_rq_tx_reset",
    "downstream_rq_idle_timeout", "downstream_rq_timeout", "downstream_rq_header_timeout",
    "downstream_rq_too_large", "downstream_cx_active", "downstream_cx_total",
    "downstream_cx_protocol_error", "downstream_cx_destroy_remote_active_rq",
)  # fmt: skip


def bootstrap(settings: PlaneSettings) -> Document:
    """Return Envoy's bootstrap document. It holds no secret."""
    return {
        # Both are asked for by every source of configuration, files too.
        "node": {"id": "vllm-pool", "cluster": "vllm-pool"},
        "admin": {
            "address": {"pipe": {"path": str(settings.run_dir / ADMIN_SOCKET), "mode": 0o600}}
        },
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": _clusters(settings),
        },
        "stats_config": {
            "use_all_default_tags": False,
            "stats_matcher": {
                "inclusion_list": {
                    "patterns": [
                        *({"suffix": f".{name}"} for name in KEPT_STATS),
                        {"prefix": "server."},
                    ]
                }
            },
        },
        "stats_flush_on_admin": True,
        "overload_manager": _overload(settings),
        # By default, what stands between a chunk and the end of its line is passed over.
        "layered_runtime": {
            "layers": [
                {
                    "name": "strict",
                    "static_layer": {"envoy.reloadable_features.strict_chunk_parsing": True},
                }
            ]
        },
        # What a burst of large bodies has left is given back to the machine.
        "memory_allocator_manager": {
            "bytes_to_release": 32 * MIB,
            "memory_release_interval": "1s",
        },
    }


def _overload(settings: PlaneSettings) -> Document:
    def threshold(action: str, monitor: str, value: float) -> Mapping[str, Any]:
        return {
            "name": f"envoy.overload_actions.{action}",
            "triggers": [{"name": monitor, "threshold": {"value": value}}],
        }

    heap = "envoy.resource_monitors.fixed_heap"
    connections = "envoy.resource_monitors.global_downstream_max_connections"
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {
                "name": heap,
                "typed_config": _typed(
                    "extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                    max_heap_size_bytes=settings.max_heap_bytes,
                ),
            },
            {
                "name": connections,
                "typed_config": _typed(
                    "extensions.resource_monitors.downstream_connections.v3"
                    ".DownstreamConnectionsConfig",
                    max_active_downstream_connections=settings.max_connections,
                ),
            },
        ],
        "actions": [
            threshold("shrink_heap", heap, 0.8),
            threshold("stop_accepting_requests", heap, 0.95),
        ],
    }
