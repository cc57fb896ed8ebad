"""Where values lie: demands of users handed back to what makes the values."""
