"""Sessions whose hosts are processes: of this machine, or of a Dask cluster."""

from hloipu.hosts.session import HostsSession, open_session

__all__ = ["HostsSession", "open_session"]
