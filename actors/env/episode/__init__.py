"""What one episode consists of: its drawn settings, its epochs, its rewards, their baseline, and its governor."""
