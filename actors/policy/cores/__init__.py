"""Policy cores, recurrent or feedforward, which run single steps and whole sequences."""
