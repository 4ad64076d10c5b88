"""Tests of saliency maps: insertion and deletion, the pointing game, randomised weights."""
