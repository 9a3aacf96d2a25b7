"""What trained models do and what their parts are worth: measurements, searches, figures."""
