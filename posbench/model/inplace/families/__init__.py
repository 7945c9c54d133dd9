"""Families of transformers whose attention modules compute scores themselves: a file each."""
