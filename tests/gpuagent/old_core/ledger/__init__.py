"""Accounting: attributes processes to pods and adds up GPU memory per pod and per GPU. Pure."""
