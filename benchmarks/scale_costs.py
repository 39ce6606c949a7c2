"""What a pack on object storage costs: requests, bytes over the network and hours of nodes, from a plan and prices.

A partition reads each of its blocks with one request when its shard is written. Values of what it leaves over are
stored in notes, one for each shard of the pool that takes some and one for its region, and read once. For that, the
note of the partition is read again, and each node reads the note of each region. Offsets of documents are read once,
with a request for each record batch. A shard is a multipart upload, and its entry one more request; the note of each
task of the plan is stored once and read once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scale_plan import ROW_BYTES, PlanFigures


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A store, its prices, and the nodes that work with it."""

    get_price: float
    """Dollars of 1,000 GET requests."""

    put_price: float
    """Dollars of 1,000 PUT, POST or LIST requests."""

    node_price: float
    """Dollars of an hour of a node."""

    transfer_price: float
    """Dollars of a GB between the nodes and the store; nothing within a region."""

    nodes: int
    cores: int
    """Cores of a node."""

    network: float
    """Gbit/s of a node in each direction."""

    core_speed: float
    """Tokens that a core packs in a second."""

    latency: float
    """Seconds of a small request."""

    at_once: int
    """Requests that a core waits for at the same time."""

    part: int
    """Bytes of a part of an upload."""

    batch: int
    """Documents in a record batch of the source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What one pack costs."""

    blocks: int
    """GET requests for blocks."""

    values: int
    """GET requests for values of leftovers, and as many PUT requests."""

    heads: int
    """GET requests for the heads and offsets of record batches."""

    notes: int
    """GET requests for notes."""

    puts: int
    """PUT and POST requests."""

    read: float
    """Bytes that are read."""

    values_bytes: float
    """Bytes of values of leftovers, which are written and read."""

    written: float
    """Bytes that are written."""

    network_hours: float
    """Node-hours in which the network is busy in its busier direction."""

    core_hours: float
    """Node-hours in which all cores are busy."""

    pool_hours: float
    """Node-hours in which cores wait for values of leftovers, with as many requests at once as they may."""

    hours: float
    """Node-hours of the pack: the busier of network and cores, and the wait for leftovers, which come last."""

    requests_price: float
    nodes_price: float
    transfer_price: float

    @property
    def gets(self) -> int:
        """All GET requests."""
        return self.blocks + self.values + self.heads + self.notes


def costs_of(plan: PlanFigures, shard_size: int, setting: Setting, max_len: int) -> Costs:
    """Return what the pack of a plan costs."""
    values = plan.values_tokens * 4 + plan.values_pieces * 16
    notes = plan.tasks + plan.partitions + plan.regions * setting.nodes
    note_bytes = 2 * plan.note_bytes + plan.region_bytes * (setting.nodes - 1)
    read = 4 * plan.tokens + 4 * plan.documents + values + note_bytes
    written = plan.rows * max_len * ROW_BYTES + 20 * plan.documents + values + plan.note_bytes
    parts = math.ceil(shard_size / setting.part) + 2  # begun and completed
    heads = math.ceil(plan.documents / setting.batch)
    puts = plan.shards * (parts + 1) + plan.tasks + plan.value_notes
    gets = plan.ranges + plan.value_notes + heads + notes
    network = max(read, written) / (setting.network / 8 * 1e9) / 3600
    cores = plan.tokens / (setting.core_speed * setting.cores) + plan.task_seconds / setting.cores
    waiting = plan.value_notes * setting.latency / (setting.at_once * setting.cores)
    hours = max(network, cores / 3600) + waiting / 3600
    return Costs(
        blocks=plan.ranges,
        values=plan.value_notes,
        heads=heads,
        notes=notes,
        puts=puts,
        read=read,
        values_bytes=values,
        written=written,
        network_hours=network,
        core_hours=cores / 3600,
        pool_hours=waiting / 3600,
        hours=hours,
        requests_price=(gets * setting.get_price + puts * setting.put_price) / 1000,
        nodes_price=hours * setting.node_price,
        transfer_price=(read + written) / 1e9 * setting.transfer_price,
    )


def cost_lines(plan: PlanFigures, costs: Costs, setting: Setting) -> list[tuple[str, str]]:
    """Return the lines of a table as (what, value)."""
    seconds = costs.hours / setting.nodes * 3600
    return [
        ("shards", f"{plan.shards:,}"),
        ("blocks of a shard", f"{plan.blocks_each:,.0f}"),
        ("rows of the pool", f"{plan.pool_rows / plan.rows:.2%}"),
        ("  their segments", _millions(plan.pool_segments)),
        ("GET, blocks", _millions(costs.blocks)),
        ("GET, record batches", _millions(costs.heads)),
        ("GET and PUT, leftovers", _millions(costs.values)),
        ("GET, notes of the plan", _millions(costs.notes)),
        ("PUT, POST", _millions(costs.puts)),
        ("read", f"{costs.read / 1e12:.1f} TB"),
        ("  leftovers", f"{costs.values_bytes / 1e12:.2f} TB"),
        ("written", f"{costs.written / 1e12:.1f} TB"),
        ("notes", f"{plan.note_bytes / 1e9:.1f} GB"),
        ("node-hours", f"{costs.hours:.1f}"),
        ("  network is busy", f"{costs.network_hours:.1f}"),
        ("  cores are busy", f"{costs.core_hours:.1f}"),
        ("  leftovers are awaited", f"{costs.pool_hours:.2f}"),
        (f"hours on {setting.nodes} nodes", f"{seconds / 3600:.2f}"),
        ("  GET per second", f"{costs.gets / seconds:,.0f}"),
        ("  PUT per second", f"{costs.puts / seconds:,.0f}"),
        ("price of requests", f"${costs.requests_price:,.0f}"),
        ("price of node-hours", f"${costs.nodes_price:,.0f}"),
        ("price of transfer", f"${costs.transfer_price:,.0f}"),
    ]


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"
