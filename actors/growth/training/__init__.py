"""What growing needs of a user's training loop: optimizer groups, isolation, ranks, and scores from gradients."""
