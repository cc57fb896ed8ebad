"""What divided programs cost on 2 to 64 IPUs, beside what theory says that they send."""
