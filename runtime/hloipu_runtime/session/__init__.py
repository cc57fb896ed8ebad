"""Sessions: resident state from run to run, fed by queues."""
