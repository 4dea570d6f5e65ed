"""What everything else speaks of: actions, spaces, episodes and published weights."""
