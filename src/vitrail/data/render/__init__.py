"""Scenes of simple bodies, ray-cast in numpy, whose depth, masks and boxes are exact.

The world has x to the right, y ahead and z up, in metres; the ground is z = 0. Arrays of points and directions are
3 N, float64. Everything that moves has a velocity: `Scene.at(time)` is the same scene some seconds later.
"""
