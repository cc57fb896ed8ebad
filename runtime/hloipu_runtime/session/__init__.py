"""Sessions: a program's state stays on the device from run to run, queues feed and drain it."""
