"""Networks, estimators and update steps that several algorithms share."""
