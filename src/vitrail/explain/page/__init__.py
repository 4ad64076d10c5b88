"""The page of explanations: one HTML file that needs no network."""
