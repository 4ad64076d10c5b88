"""int8: calibrated on images, or dynamic."""
