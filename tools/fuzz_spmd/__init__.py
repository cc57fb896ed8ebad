"""Random sharded programs on the blocks of all devices, against one device."""
