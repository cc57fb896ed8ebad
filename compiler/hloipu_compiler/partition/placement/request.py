"""What the user says of IPUs without stages, and the refusals of what cannot be."""

from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.frozen import dataclass


class ShardingError(UnsupportedError):
    """Ops that cannot be placed as asked, or shards that do not fill the system."""


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """How many IPUs the ops of one copy of a step are placed on."""

    count: int | None = None
    """None: as annotated."""
    is_automatic: bool = False
    """As few as have room."""
    ipus: int = 1
    """Of the system; 1: as many as it takes."""
    most: int = 1
    """That any system has."""
    fills: bool = False
    """Whether the system is filled with replicas."""
    averages: bool = False
    """Whether replicas combine gradients, which no op of the module does."""
    is_placed: bool = False
    """Whether ops are on several IPUs: as is asked for here, or as they are annotated."""

    @property
    def asks(self) -> bool:
        """Whether ops are to be placed that are not annotated."""
        return self.is_automatic or self.count is not None

    def check(self, shards: int) -> None:
        """Raise ShardingError E0550 where annotations put ops on other IPUs than are asked for."""
        if self.count is not None and shards != rounded_up(self.count):
            raise ShardingError(
                "E0550",
                f"{self.count} shards are asked for, and ops are annotated with {shards}",
                hint="leave --shards out, or take the annotations out",
            )

    def replicas(self, shards: int) -> int:
        """Return how many replicas fill the system; ShardingError E0551 where none do."""
        if self.ipus % shards:
            raise ShardingError(
                "E0551",
                f"{self.ipus} IPUs were asked for, and a replica takes {shards}",
                hint=f"give --ipus a multiple of {shards}; shards are rounded up to a power of two",
            )
        return self.ipus // shards


def rounded_up(shards: int) -> int:
    """Return the IPUs that a number of shards takes: the next power of two."""
    return 1 << (shards - 1).bit_length()
