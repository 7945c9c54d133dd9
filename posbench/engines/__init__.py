"""Running engines that are asked for the losses of texts: one file each."""
