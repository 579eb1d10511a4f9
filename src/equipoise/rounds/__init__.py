"""One federated round: the clients' half, the server's half, and the scores behind it."""
