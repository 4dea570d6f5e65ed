"""The commands of `tamiyo`, one file each."""
