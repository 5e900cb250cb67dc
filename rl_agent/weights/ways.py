"""How pieces travel: over the connections on which they are asked for, or another way beside them."""

from dataclasses import dataclass

from rl_agent.weights.mooncake import MooncakeSource, RegisteredBlobs, TransferEngine
from rl_agent.weights.pair_gloo import GlooPairs
from rl_agent.weights.pair_nccl import NcclPairs
from rl_agent.weights.pairs import Pairing, PairSource
from rl_agent.weights.server import ServerSettings, WeightServer
from rl_agent.weights.shelf import Shelf
from rl_agent.weights.source_tcp import TcpSource
from rl_agent.weights_config import Transport


@dataclass(frozen=True, slots=True)
class Way:
    """One a process. What the other side does not have goes by TCP."""

    engine: TransferEngine | None = None
    pairing: Pairing | None = None

    def source(self, tcp: TcpSource) -> TcpSource | MooncakeSource | PairSource:
        if self.engine is not None:
            return MooncakeSource(tcp, self.engine)
        return tcp if self.pairing is None else PairSource(tcp, self.pairing)

    def server(self, shelf: Shelf, token: bytes, settings: ServerSettings) -> WeightServer:
        memory = None if self.engine is None else RegisteredBlobs(self.engine)
        pairs = None if self.pairing is None else self.pairing.maker
        return WeightServer(shelf, token, settings, memory=memory, pairs=pairs)


def open_way(transport: Transport, host: str) -> Way:
    """`host` is the address at which others reach this one. Raises WeightsError if it cannot be had."""
    match transport:
        case "tcp" | "http":  # the second is a receiver's: what it has, it gives on as all do
            return Way()
        case "mooncake":
            return Way(engine=TransferEngine(host, "tcp"))
        case "mooncake_rdma":
            return Way(engine=TransferEngine(host, "rdma"))
        case "nccl":
            return Way(pairing=Pairing(NcclPairs()))
        case "gloo":
            return Way(pairing=Pairing(GlooPairs()))
