"""Advice before training: model, weights and recipe, from measured rows; each sentence names those it rests on."""
