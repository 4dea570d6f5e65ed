"""Records of episodes (`Timeline`) and pictures of them."""
