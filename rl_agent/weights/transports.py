"""Chooses how pieces travel: over the connection on which they are asked for, or beside it."""

from dataclasses import dataclass

from rl_agent.config.sections.weights import Transport
from rl_agent.weights.pairs.mooncake import MooncakeSource, RegisteredBlobs, TransferEngine
from rl_agent.weights.pairs.pair_nccl import NcclPairs
from rl_agent.weights.pairs.pairs import Pairing, PairSource
from rl_agent.weights.server.server import ServerSettings, WeightServer
from rl_agent.weights.sources.source_tcp import TcpSource
from rl_agent.weights.store.catalog import Catalog


@dataclass(frozen=True, slots=True)
class PieceTransport:
    """The transport of this process's pieces; what the other side does not support goes over TCP."""

    engine: TransferEngine | None = None
    pairing: Pairing | None = None

    def source(self, tcp: TcpSource) -> TcpSource | MooncakeSource | PairSource:
        if self.engine is not None:
            return MooncakeSource(tcp, self.engine)
        return tcp if self.pairing is None else PairSource(tcp, self.pairing)

    def server(self, catalog: Catalog, token: bytes | None, settings: ServerSettings) -> WeightServer:
        memory = None if self.engine is None else RegisteredBlobs(self.engine)
        pairs = None if self.pairing is None else self.pairing.maker
        return WeightServer(catalog, token, settings, memory=memory, pairs=pairs)


def open_transport(transport: Transport, host: str) -> PieceTransport:
    """Open what `transport` needs; `host` is this host's address. Raises WeightsError if that fails."""
    match transport:
        case "tcp" | "http":  # the second is a receiver's: what it has, it gives on as all do
            return PieceTransport()
        case "mooncake":
            return PieceTransport(engine=TransferEngine(host, "tcp"))
        case "mooncake_rdma":
            return PieceTransport(engine=TransferEngine(host, "rdma"))
        case "nccl":
            return PieceTransport(pairing=Pairing(NcclPairs()))
