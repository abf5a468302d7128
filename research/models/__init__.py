"""Pretrained models of this installation."""
