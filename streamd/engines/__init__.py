"""Who decodes: processes of this host (`local`)."""
