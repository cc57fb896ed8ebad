"""Host streams: sources of elements, bounded queues to and from the device, and their clock."""
